//! The server: [`Server`] for whoever hosts a store. Left out: choosing the address, and what ranks write into the store.
//!
//! [`Data`] (what operations do) and [`Session`] (one connection's bytes) are pure; sockets, threads and deadlines stand around
//! them.

mod connection;
mod data;
mod holdings;
mod listener;
mod options;
mod session;
mod shared;
mod waiters;
mod waits;

pub use data::{Data, Outcome, Refused};
pub use options::Options;
pub use session::{Session, Turn, Violation};
pub use shared::{Peer, Refusal};
pub use waits::Waits;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::wire::{KEY_PREFIX, Request, user_key, wire_key};
use shared::Shared;

/// A connection's name within its server; never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

impl ConnectionId {
    /// The server's host, who needs no connection.
    pub const HOST: Self = Self(0);
}

/// A store that serves until it is dropped.
///
/// It runs on threads of its own, and its methods never wait for a peer, so that it can be held and dropped by synchronous and
/// asynchronous code alike. Dropping it closes the listener and every connection and ends the threads.
///
/// Whoever can connect can read and change everything: the protocol has no password. So bind to loopback if all ranks run on
/// this host (`127.0.0.1:0`), else to the address of the interface that the other hosts reach, and to `0.0.0.0` only if that
/// cannot be told.
///
/// ```
/// use std::net::TcpListener;
/// let listener = TcpListener::bind("127.0.0.1:0")?; // this host only, any free port
/// let server = tcpstore::Server::start(listener, tcpstore::Options::default())?;
/// println!("MASTER_PORT={}", server.local_addr().port());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves on `listener`.
    ///
    /// # Errors
    /// What the system says if it gives no thread or does not know the socket.
    pub fn start(listener: std::net::TcpListener, options: Options) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::new(options));
        let (stop, stopped) = oneshot::channel();
        let (started, start) = mpsc::channel();
        let all = Arc::clone(&shared);
        // The runtime lives and ends on its thread: ending one within asynchronous code is not allowed.
        let run = move || run(listener, all, stopped, &started);
        let thread = std::thread::Builder::new().name("tcpstore".to_owned()).spawn(run)?;
        start.recv().unwrap_or_else(|_| Err(io::Error::other("the store's thread ended before it served")))?;
        Ok(Self { address, shared, stop: Some(stop), thread: Some(thread) })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Who is connected, in the order of connecting.
    pub fn peers(&self) -> Vec<Peer> {
        self.shared.lock().peers()
    }

    /// How many are connected.
    pub fn connections(&self) -> usize {
        self.shared.lock().connections()
    }

    /// Who waits for keys that begin with `prefix`, without looking again and again.
    pub fn watch_waits(&self, prefix: &str) -> Waits {
        Waits::new(self.shared.lock().data.watch_waits(wire_key(prefix)))
    }

    /// Bytes that the store takes: keys and values, and what connections hold.
    pub fn bytes(&self) -> usize {
        self.shared.lock().bytes()
    }

    /// The last connections that were closed for what their peer did, oldest first (32 at most).
    pub fn refusals(&self) -> Vec<Refusal> {
        self.shared.lock().refusals()
    }

    /// The value of a key, named as clients name it.
    pub fn get(&self, key: &str) -> Option<Vec<u8>> {
        self.shared.lock().data.value(&wire_key(key)).cloned()
    }

    /// Sets a key, named as clients name it, and ends waits for it.
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

    /// The keys that begin with `prefix`, named as clients name them, sorted.
    pub fn keys(&self, prefix: &str) -> Vec<String> {
        let state = self.shared.lock();
        let prefix = wire_key(prefix);
        let mut keys: Vec<String> =
            state.data.keys().filter(|key| key.starts_with(&prefix)).map(|key| user_key(key)).collect();
        keys.sort();
        keys
    }

    /// Deletes the keys and queues that begin with `prefix`, and counts them. Waits go on.
    pub fn delete_prefix(&self, prefix: &str) -> usize {
        let prefix = wire_key(prefix);
        self.shared.lock().data.delete_where(|key| key.starts_with(&prefix))
    }

    /// Deletes everything that does not begin with `prefix`, and counts it: also `init/`, which libtorch's
    /// `wait_for_workers` counts in and which bears no user's name. Waits go on.
    pub fn clear_except(&self, prefix: &str) -> usize {
        let prefix = wire_key(prefix);
        self.shared.lock().data.delete_where(|key| !(key.starts_with(KEY_PREFIX) && key.starts_with(&prefix)))
    }

    /// Stops serving, as dropping does: when it returns, the port is free and every connection is closed.
    pub fn shutdown(self) {
        drop(self);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // if it panicked, it has ended, too
        }
    }
}

/// Runs the server on this thread until `stopped`, and says first whether it started.
fn run(
    listener: std::net::TcpListener,
    shared: Arc<Shared>,
    stopped: oneshot::Receiver<()>,
    started: &mpsc::Sender<io::Result<()>>,
) {
    /// By then the workers have let go of the tasks, which never block.
    const END: Duration = Duration::from_secs(5);
    let threads = shared.options.worker_threads.max(1);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_name("tcpstore-worker")
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return drop(started.send(Err(error))),
    };
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener);
        let outcome = listener.map(|listener| listener::accept(listener, shared));
        match outcome {
            Ok(serving) => {
                let _ = started.send(Ok(()));
                tokio::select! {
                    () = serving => {}
                    _ = stopped => {}
                }
            }
            Err(error) => drop(started.send(Err(error))),
        }
    });
    runtime.shutdown_timeout(END);
}
