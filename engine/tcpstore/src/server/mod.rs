//! The server: [`Server`] for a process that hosts a store, and the loop that accepts connections. Not here: the choice
//! of the address, and what ranks write into the store.
//!
//! [`Data`] (the effect of operations) and [`Session`] (one connection's protocol) are pure; sockets, threads and
//! deadlines are around them.

mod connection;
mod data;
mod shared;

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use connection::serve;
use rustix::net::sockopt;
use shared::Shared;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::wire::{KEY_PREFIX, Request, user_key, wire_key};

pub use connection::{Session, Turn, Violation};
pub use data::{ConnectionId, Data, Outcome, Refused};
pub use shared::{Peer, Refusal, ServerOptions};

/// A store that serves clients until it is dropped.
///
/// It runs on its own threads, and its methods never wait for a peer. So synchronous and asynchronous code alike can
/// hold and drop it. Dropping it closes the listener and every connection and joins the threads.
///
/// Every client that can connect can read and change everything: the protocol has no password. So bind to loopback if
/// all ranks run on this host (`127.0.0.1:0`), otherwise to the address of the interface that the other hosts use, and
/// to `0.0.0.0` only if you do not know that address.
///
/// ```
/// use std::net::TcpListener;
/// let listener = TcpListener::bind("127.0.0.1:0")?; // this host only, any free port
/// let server = tcpstore::Server::start(listener, tcpstore::ServerOptions::default())?;
/// println!("MASTER_PORT={}", server.local_addr().port());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    deafen: UnboundedSender<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts serving on `listener`.
    ///
    /// # Errors
    /// The operating system's error if a thread cannot be started or the socket cannot be used.
    pub fn start(listener: std::net::TcpListener, options: ServerOptions) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::new(options));
        let (stop, stopped) = oneshot::channel();
        let (deafen, deafened) = unbounded_channel();
        let (started, start) = mpsc::channel();
        let all = Arc::clone(&shared);
        // The runtime is dropped on its own thread: tokio forbids dropping one in asynchronous code.
        let run = move || run(listener, all, stopped, deafened, &started);
        let thread = std::thread::Builder::new().name("tcpstore".to_owned()).spawn(run)?;
        start
            .recv()
            .unwrap_or_else(|_| Err(io::Error::other("the store's thread ended before it started to serve")))?;
        Ok(Self { address, shared, stop: Some(stop), deafen, thread: Some(thread) })
    }

    /// The address of the listener.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The connected clients, in the order in which they connected.
    pub fn peers(&self) -> Vec<Peer> {
        self.shared.lock().peers()
    }

    /// The number of connected clients.
    pub fn connections(&self) -> usize {
        self.shared.lock().connections()
    }

    /// Takes the connections of clients that [leave the protocol](crate::wire::SWITCH), past and future; `None` at a second call,
    /// or without [`ServerOptions::hands_over`].
    pub fn take_switched(&self) -> Option<UnboundedReceiver<std::net::TcpStream>> {
        self.shared.lock().take_switched()
    }

    /// Bytes that the store takes: keys, values and connections.
    pub fn bytes(&self) -> usize {
        self.shared.lock().bytes()
    }

    /// The last connections that were closed because of their peer, oldest first (at most 32).
    pub fn refusals(&self) -> Vec<Refusal> {
        self.shared.lock().refusals()
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &str) -> Option<Vec<u8>> {
        self.shared.lock().data.value(&wire_key(key)).cloned()
    }

    /// Sets a key and ends waits for it.
    ///
    /// # Errors
    /// The store is full.
    pub fn set(&self, key: &str, value: &[u8]) -> Result<(), Refused> {
        let mut state = self.shared.lock();
        let request = Request::Set { key: wire_key(key), value: value.to_vec() };
        let outcome = state.data.apply(ConnectionId::HOST, request)?;
        state.wake(&outcome.woken);
        Ok(())
    }

    /// Returns the keys that begin with `prefix`, sorted.
    pub fn keys(&self, prefix: &str) -> Vec<String> {
        let state = self.shared.lock();
        let prefix = wire_key(prefix);
        let mut keys: Vec<String> =
            state.data.keys().filter(|key| key.starts_with(&prefix)).map(|key| user_key(key)).collect();
        keys.sort();
        keys
    }

    /// Deletes the keys and queues that begin with `prefix` and returns their number. Waits continue.
    pub fn delete_prefix(&self, prefix: &str) -> usize {
        let prefix = wire_key(prefix);
        self.shared.lock().data.delete_where(|key| key.starts_with(&prefix))
    }

    /// Deletes everything that does not begin with `prefix` and returns the number of keys and queues. This includes
    /// `init/`, the counter of libtorch's `wait_for_workers`, which has no prefix. Waits continue.
    pub fn clear_except(&self, prefix: &str) -> usize {
        let prefix = wire_key(prefix);
        self.shared.lock().data.delete_where(|key| !(key.starts_with(KEY_PREFIX) && key.starts_with(&prefix)))
    }

    /// Closes the listener; clients that are connected are served on. When it returns, the port refuses connections.
    pub fn stop_listening(&self) {
        let (closed, wait) = mpsc::channel();
        if self.deafen.send(closed).is_ok() {
            let _ = wait.recv(); // the thread has ended, or had closed the listener before
        }
    }

    /// Stops serving, as dropping does. When it returns, the port is free and every connection is closed.
    pub fn shutdown(self) {
        drop(self);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a panic ended it, too
        }
    }
}

/// Runs the server on this thread until `stopped`. First reports whether it started.
fn run(
    listener: std::net::TcpListener,
    shared: Arc<Shared>,
    stopped: oneshot::Receiver<()>,
    mut deafened: UnboundedReceiver<mpsc::Sender<()>>,
    started: &mpsc::Sender<io::Result<()>>,
) {
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(error) => return drop(started.send(Err(error))),
    };
    let workers = Workers::start(shared.options.worker_threads, runtime.handle());
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener);
        let outcome = listener.map(|listener| accept(listener, shared, &workers.runtimes));
        match outcome {
            Ok(serving) => {
                let _ = started.send(Ok(()));
                let serving = async {
                    // The listener is closed before the answer, which is that the request is dropped.
                    let request = tokio::select! {
                        () = serving => None,
                        request = deafened.recv() => request,
                    };
                    drop(request);
                    while deafened.recv().await.is_some() {}
                    pending::<()>().await;
                };
                tokio::select! {
                    () = serving => {}
                    _ = stopped => {}
                }
            }
            Err(error) => drop(started.send(Err(error))),
        }
    });
    drop(workers);
    runtime.shutdown_timeout(END);
}

/// Time limit for the threads to drop their tasks, which never block.
const END: Duration = Duration::from_secs(5);

/// A runtime of one thread. With several, tokio panics if the system has no room for a thread.
fn runtime() -> io::Result<tokio::runtime::Runtime> {
    // tokio opens such a pair with its first runtime, and panics if the process may open no more files.
    drop(std::os::unix::net::UnixStream::pair()?);
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// The threads that serve connections; dropping it ends them.
struct Workers {
    /// The threads' runtimes, which serve the connections.
    runtimes: Vec<Handle>,
    /// Each thread serves until its sender is dropped.
    threads: Vec<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Workers {
    /// Starts `count` threads. If the system has no room for all, fewer serve; if it has room for none, the `own` runtime serves: a store
    /// that is slower under load is better than none.
    fn start(count: usize, own: &Handle) -> Self {
        let threads: Vec<_> = (0..count).map_while(|_| start_worker().ok()).collect();
        let runtimes: Vec<_> = threads.iter().map(|(runtime, ..)| runtime.clone()).collect();
        let runtimes = if runtimes.is_empty() { vec![own.clone()] } else { runtimes };
        Workers { runtimes, threads: threads.into_iter().map(|(_, stop, thread)| (stop, thread)).collect() }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        let (stops, threads): (Vec<_>, Vec<_>) = self.threads.drain(..).unzip();
        drop(stops);
        for thread in threads {
            let _ = thread.join(); // a panic ended it, too
        }
    }
}

fn start_worker() -> io::Result<(Handle, oneshot::Sender<()>, JoinHandle<()>)> {
    let runtime = runtime()?;
    let handle = runtime.handle().clone();
    let (stop, stopped) = oneshot::channel::<()>();
    let serve = move || {
        let _ = runtime.block_on(stopped); // the sender is dropped at the end
        runtime.shutdown_timeout(END);
    };
    let thread = std::thread::Builder::new().name("tcpstore-worker".to_owned()).spawn(serve)?;
    Ok((handle, stop, thread))
}

/// Pause after a failed accept, for example when the limit of open files is reached.
const PAUSE: Duration = Duration::from_millis(50);

/// Accepts connections forever; the runtimes take turns to serve them.
async fn accept(listener: TcpListener, all: Arc<Shared>, runtimes: &[Handle]) {
    for runtime in runtimes.iter().cycle() {
        let (stream, address) = loop {
            match listener.accept().await {
                Ok(accepted) => break accepted,
                Err(_) => sleep(PAUSE).await,
            }
        };
        prepare(&stream, all.options.keepalive);
        // Another runtime will watch the socket.
        let Ok(stream) = stream.into_std() else { continue };
        let admitted = all.lock().admit(address, Instant::now(), all.options.max_connections);
        if let Some((id, wake)) = admitted {
            let task = runtime.spawn(serve(stream, address, id, wake, Arc::clone(&all)));
            all.lock().attach(id, task.abort_handle());
        }
    }
}

/// Sends replies without delay and detects dead hosts. If the kernel does not support an option, the connection still
/// works.
fn prepare(stream: &TcpStream, keepalive: Duration) {
    const PROBES: u32 = 3;
    let between = (keepalive / 6).max(Duration::from_secs(1));
    let gone_after = keepalive + between * PROBES;
    let _ = stream.set_nodelay(true);
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, keepalive.max(Duration::from_secs(1)));
    let _ = sockopt::set_tcp_keepintvl(stream, between);
    let _ = sockopt::set_tcp_keepcnt(stream, PROBES);
    let _ = sockopt::set_tcp_user_timeout(stream, u32::try_from(gone_after.as_millis()).unwrap_or(u32::MAX));
}
