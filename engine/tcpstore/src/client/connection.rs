//! A client's connections: connect, handshake, send and receive; which connection carries a request, deadlines, and the cancellation
//! of waits. Not here: the meaning of each operation.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::{Error, Kind};
use crate::wire::{
    Expect, Frame, Key, Limits, MAGIC, Reader, Reply, Request, SWITCH, Scan, Value, WireError, user_key, wire_key,
};

/// Pauses between attempts to connect: the first and the longest. Each is shortened by a random amount of up to half.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));
/// Time limit of one attempt if a host does not answer at all, so that its other addresses are tried, too.
const ATTEMPT: Duration = Duration::from_secs(5);

/// Where to connect, and with which limits.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) host: String,
    pub(super) port: u16,
    /// How long a server that accepted the connection may take to answer.
    pub(super) handshake_timeout: Duration,
    pub(super) limits: Limits,
}

/// A connection after its handshake.
#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    input: Vec<u8>,
    limits: Limits,
}

impl Connection {
    /// Connects, and retries until `deadline` while the port refuses connections. A server that is not a TCPStore is
    /// reported immediately.
    async fn open(target: &Target, deadline: Instant) -> Result<Self, Kind> {
        let mut pause = PAUSE.0;
        let mut hung_up_since = None;
        let mut refused = false;
        loop {
            let kind = match Self::attempt(target, deadline).await {
                Ok(connection) => return Ok(connection),
                Err(kind) => kind,
            };
            let now = Instant::now();
            refused |= matches!(kind, Kind::Refused);
            let until = match kind {
                Kind::Unresolved(_) | Kind::Refused | Kind::Unreachable(_) => deadline,
                // A server whose accept queue is full does this for an unknown time.
                Kind::HungUp => deadline.min(*hung_up_since.get_or_insert(now) + target.handshake_timeout),
                _ => return Err(kind),
            };
            let next = now + pause.mul_f64(1.0 - random_fraction() / 2.0);
            if next >= until {
                // An attempt that the deadline interrupted is less informative than the earlier ones.
                let cut_short = matches!(kind, Kind::Unreachable(_)) && now >= deadline;
                return Err(if refused && cut_short { Kind::Refused } else { kind });
            }
            sleep_until(next).await;
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Tries every address of the host once.
    async fn attempt(target: &Target, deadline: Instant) -> Result<Self, Kind> {
        let lookup = tokio::net::lookup_host((target.host.as_str(), target.port));
        let addresses = timeout_at(deadline, lookup).await.unwrap_or_else(|late| Err(late.into()));
        let mut outcome = Kind::Unresolved(io::Error::other("no address"));
        for address in addresses.map_err(Kind::Unresolved)? {
            match Self::try_address(address, target, deadline).await {
                Err(kind @ (Kind::Refused | Kind::Unreachable(_))) => outcome = kind,
                done => return done,
            }
        }
        Err(outcome)
    }

    async fn try_address(address: SocketAddr, target: &Target, deadline: Instant) -> Result<Self, Kind> {
        let attempt = deadline.min(Instant::now() + ATTEMPT);
        let stream = match timeout_at(attempt, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => return Err(Kind::Refused),
            Ok(Err(error)) => return Err(Kind::Unreachable(error)),
            Err(late) => return Err(Kind::Unreachable(late.into())),
        };
        // On loopback a socket can connect to itself if the port is in the ephemeral range.
        if stream.local_addr().ok() == stream.peer_addr().ok() {
            return Err(Kind::Refused);
        }
        let _ = stream.set_nodelay(true);
        let mut connection = Self { stream, input: Vec::new(), limits: target.limits };
        // Not shortened near the deadline: otherwise a server that has just started would be reported as something that is
        // not a store.
        let answer_by = Instant::now() + target.handshake_timeout;
        timeout_at(answer_by, connection.handshake()).await.unwrap_or(Err(Kind::Mute))?;
        Ok(connection)
    }

    /// Sends VALIDATE and PING, and reads the nonce back.
    async fn handshake(&mut self) -> Result<(), Kind> {
        let nonce = random() as u32;
        let mut opening = Vec::new();
        Request::Validate { magic: MAGIC }.encode(&mut opening);
        Request::Ping { nonce }.encode(&mut opening);
        match self.open_with(&opening).await {
            Err(Kind::Closed) if self.input.is_empty() => Err(Kind::HungUp),
            Ok(()) | Err(Kind::Closed) if self.input != nonce.to_le_bytes() => Err(self.not_a_store(&opening)),
            other => other.map(|()| self.input.clear()),
        }
    }

    /// Sends the opening bytes and reads until four bytes have arrived.
    async fn open_with(&mut self, opening: &[u8]) -> Result<(), Kind> {
        self.send(opening).await?;
        while self.input.len() < 4 {
            self.fill().await?;
        }
        Ok(())
    }

    /// Describes the answer of a server that is not a store.
    fn not_a_store(&self, opening: &[u8]) -> Kind {
        const SHOWN: usize = 60;
        let got = match opening.starts_with(&self.input) {
            true => "an echo of what was sent".into(),
            false => String::from_utf8_lossy(&self.input[..self.input.len().min(SHOWN)]),
        };
        Kind::NotAStore { got: got.into_owned() }
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<(), Kind> {
        Ok(self.stream.write_all(bytes).await?)
    }

    /// The socket. Every reply has been received.
    fn into_stream(self) -> TcpStream {
        self.stream
    }

    /// Receives the expected reply. If the future is dropped, the bytes that have arrived are kept; a reply is removed
    /// from the buffer only when it is complete.
    async fn receive(&mut self, expect: Expect) -> Result<Reply, Kind> {
        let (mut scan, mut needs) = (Scan::default(), 0);
        loop {
            if self.input.len() >= needs {
                match scan.reply(expect, &self.input, &self.limits).map_err(Kind::Protocol)? {
                    Frame::Complete(length) => return self.take(expect, length),
                    Frame::Incomplete(more) => needs = more,
                }
            }
            self.fill().await?;
        }
    }

    /// Removes the complete reply from the buffer.
    fn take(&mut self, expect: Expect, length: usize) -> Result<Reply, Kind> {
        let mut reader = Reader::new(&self.input[..length]);
        let reply = Reply::read(expect, &mut reader, &self.limits).map_err(Kind::Protocol)?;
        self.input.drain(..length);
        Ok(reply)
    }

    /// Reads the next bytes into the buffer.
    async fn fill(&mut self) -> Result<(), Kind> {
        match self.stream.read_buf(&mut self.input).await? {
            0 => Err(Kind::Closed),
            _ => Ok(()),
        }
    }
}

/// A random number, good enough for a nonce and for random pauses.
pub(super) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// A random number from 0 to 1.
fn random_fraction() -> f64 {
    random() as f64 / u64::MAX as f64
}

/// If the server does not answer at all, a wait ends at most this much after its deadline.
const GRACE: Duration = Duration::from_secs(2);
/// Number of connections that are kept for later waits.
const IDLE: usize = 4;
/// When a wait for more keys than this expires, the client does not ask which of them are missing.
const MOST_ASKED: usize = 1024;

/// The requests of a client and of its clones.
#[derive(Clone, Debug)]
pub(super) struct Requests {
    connections: Arc<Connections>,
    /// Time limit of requests that the server answers immediately.
    pub(super) operation_timeout: Duration,
}

#[derive(Debug)]
struct Connections {
    target: Target,
    peer: String,
    /// `None` while an operation uses it, or after an operation was dropped before its reply arrived.
    main: Mutex<Option<Connection>>,
    idle: StdMutex<Vec<Connection>>,
    lost: AtomicBool,
}

/// An operation in progress, for its error message.
pub(super) struct Call<'a> {
    operation: &'static str,
    keys: &'a [&'a str],
    pub(super) started: Instant,
}

impl Requests {
    /// Connects, as [`Connection::open`] does.
    pub(super) async fn open(
        target: Target,
        peer: String,
        deadline: Instant,
        operation_timeout: Duration,
    ) -> Result<Self, Kind> {
        let main = Connection::open(&target, deadline).await?;
        let connections = Connections {
            target,
            peer,
            main: Mutex::new(Some(main)),
            idle: StdMutex::new(Vec::new()),
            lost: AtomicBool::new(false),
        };
        Ok(Self { connections: Arc::new(connections), operation_timeout })
    }

    pub(super) fn with_operation_timeout(&self, operation_timeout: Duration) -> Self {
        Self { operation_timeout, ..self.clone() }
    }

    pub(super) fn peer(&self) -> &str {
        &self.connections.peer
    }

    /// Takes the main connection out of the protocol.
    pub(super) async fn switch(&self, deadline: Instant) -> Result<TcpStream, Kind> {
        self.connections.switch(deadline).await
    }

    /// Runs an operation with one reply.
    pub(super) async fn quick<'a>(
        &self,
        operation: &'static str,
        keys: &'a [&'a str],
        request: Request,
    ) -> Result<(Reply, Call<'a>), Error> {
        let call = Call::new(operation, keys);
        let reply = self.exchange(&[request], call.started + self.operation_timeout).await;
        match reply.and_then(|mut replies| replies.pop().ok_or_else(unexpected_reply)) {
            Ok(reply) => Ok((reply, call)),
            Err(kind) => Err(call.failed(self.peer(), kind)),
        }
    }

    /// Runs an operation whose reply is a number.
    pub(super) async fn number(&self, operation: &'static str, keys: &[&str], request: Request) -> Result<i64, Error> {
        match self.quick(operation, keys, request).await? {
            (Reply::Number(number), _) => Ok(number),
            (_, call) => Err(call.failed(self.peer(), unexpected_reply())),
        }
    }

    /// Runs an operation without a reply. A PING after it confirms that it is complete.
    pub(super) async fn confirmed(
        &self,
        operation: &'static str,
        keys: &[&str],
        request: Request,
    ) -> Result<(), Error> {
        let call = Call::new(operation, keys);
        let nonce = random() as u32;
        let replies = self.exchange(&[request, Request::Ping { nonce }], call.started + self.operation_timeout).await;
        match replies {
            Ok(replies) if replies == [Reply::Nonce(nonce)] => Ok(()),
            Ok(_) => Err(call.failed(self.peer(), unexpected_reply())),
            Err(kind) => Err(call.failed(self.peer(), kind)),
        }
    }

    pub(super) async fn get_all(&self, call: &Call<'_>, timeout: Duration) -> Result<Vec<Value>, Error> {
        let (keys, deadline) = (call.wire_keys(), call.started + timeout);
        let wait_and_look = async {
            loop {
                if let Some(values) = self.get_if_all_exist(&keys, with_grace(deadline)).await? {
                    return Ok(values);
                }
                // A key may be deleted between the wait and the read.
                self.wait_on_own_connection(&keys, deadline).await?;
            }
        };
        wait_and_look.await.map_err(|kind| call.failed(self.peer(), kind))
    }

    /// Returns the values of the keys if all of them exist now.
    pub(super) async fn get_if_all_exist(&self, keys: &[Key], deadline: Instant) -> Result<Option<Vec<Value>>, Kind> {
        let check = Request::Check { keys: keys.to_vec() };
        let get = Request::MultiGet { keys: keys.to_vec() };
        match <[Reply; 2]>::try_from(self.exchange(&[check, get], deadline).await?) {
            Ok([Reply::Ready(ready), Reply::Values(values)]) => Ok(ready.then_some(values)),
            _ => Err(unexpected_reply()),
        }
    }

    pub(super) async fn wait_for(&self, keys: &[Key], deadline: Instant) -> Result<(), Kind> {
        let check = self.exchange(&[Request::Check { keys: keys.to_vec() }], with_grace(deadline)).await?;
        if check == [Reply::Ready(true)] { Ok(()) } else { self.wait_on_own_connection(keys, deadline).await }
    }

    /// Sends requests on the main connection and receives their replies, if they have any.
    async fn exchange(&self, requests: &[Request], deadline: Instant) -> Result<Vec<Reply>, Kind> {
        let bytes = encode(requests, &self.connections.target.limits)?;
        let exchange = async {
            let mut slot = self.connections.main.lock().await;
            let mut connection = match slot.take() {
                Some(connection) => connection,
                None => self.connections.open(deadline).await?,
            };
            let mut replies = Vec::new();
            connection.send(&bytes).await?;
            for expect in requests.iter().filter_map(Expect::after) {
                replies.push(connection.receive(expect).await?);
            }
            *slot = Some(connection);
            Ok(replies)
        };
        self.connections.check_lost()?;
        let outcome = timeout_at(deadline, exchange).await.unwrap_or(Err(Kind::TimedOut));
        self.connections.note_loss(outcome)
    }

    /// Waits on a separate connection.
    async fn wait_on_own_connection(&self, keys: &[Key], deadline: Instant) -> Result<(), Kind> {
        self.connections.check_lost()?;
        let bytes = encode(&[Request::Wait { keys: keys.to_vec() }], &self.connections.target.limits)?;
        let outcome = async {
            let mut connection = self.connections.borrow(deadline).await?;
            connection.send(&bytes).await?;
            let waited = match timeout_at(deadline, connection.receive(Expect::Wait)).await {
                Ok(reply) => over(reply?),
                Err(_) => timeout_at(Instant::now() + GRACE, cancel_wait(&mut connection, keys))
                    .await
                    .unwrap_or(Err(Kind::TimedOut))?,
            };
            self.connections.give_back(connection);
            waited
        };
        self.connections.note_loss(outcome.await)
    }
}

impl Connections {
    async fn switch(&self, deadline: Instant) -> Result<TcpStream, Kind> {
        self.check_lost()?;
        let switch = async {
            let mut connection = match self.main.lock().await.take() {
                Some(connection) => connection,
                None => self.open(deadline).await?,
            };
            connection.send(&[SWITCH]).await?;
            Ok(connection.into_stream())
        };
        timeout_at(deadline, switch).await.unwrap_or(Err(Kind::TimedOut))
    }

    fn check_lost(&self) -> Result<(), Kind> {
        if self.lost.load(Ordering::Relaxed) { Err(Kind::Closed) } else { Ok(()) }
    }

    /// Remembers that the server has closed a connection.
    fn note_loss<T>(&self, outcome: Result<T, Kind>) -> Result<T, Kind> {
        if matches!(outcome, Err(Kind::Closed)) {
            self.lost.store(true, Ordering::Relaxed);
        }
        outcome
    }

    /// Opens another connection to a server that was reachable before, so without retries.
    async fn open(&self, deadline: Instant) -> Result<Connection, Kind> {
        Connection::open(&self.target, deadline.min(Instant::now() + GRACE)).await.map_err(|kind| match kind {
            Kind::Refused => Kind::Closed,
            other => other,
        })
    }

    /// Returns a connection for a wait.
    async fn borrow(&self, deadline: Instant) -> Result<Connection, Kind> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match idle {
            Some(connection) => Ok(connection),
            None => self.open(with_grace(deadline)).await,
        }
    }

    fn give_back(&self, connection: Connection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE {
            idle.push(connection);
        }
    }
}

impl<'a> Call<'a> {
    pub(super) fn new(operation: &'static str, keys: &'a [&'a str]) -> Self {
        Self { operation, keys, started: Instant::now() }
    }

    pub(super) fn wire_keys(&self) -> Vec<Key> {
        self.keys.iter().map(|key| wire_key(key)).collect()
    }

    pub(super) fn failed(&self, peer: &str, kind: Kind) -> Error {
        Error {
            operation: self.operation,
            keys: self.keys.iter().map(|&key| key.to_owned()).collect(),
            peer: peer.to_owned(),
            elapsed: self.started.elapsed(),
            kind,
        }
    }
}

/// Cancels a wait. The inner result is the wait's, which may have ended in the meantime.
async fn cancel_wait(connection: &mut Connection, keys: &[Key]) -> Result<Result<(), Kind>, Kind> {
    connection.send(&encode(&[Request::CancelWait], &Limits::default())?).await?;
    match connection.receive(Expect::Wait).await? {
        Reply::WaitCanceled => Ok(Err(Kind::Missing { missing: missing(connection, keys).await? })),
        _ => match connection.receive(Expect::Wait).await? {
            Reply::WaitCanceled => Ok(Ok(())),
            _ => Err(unexpected_reply()),
        },
    }
}

/// Returns the keys that do not exist; all keys if there are too many to ask about.
async fn missing(connection: &mut Connection, keys: &[Key]) -> Result<Vec<String>, Kind> {
    let asked = if keys.len() > MOST_ASKED { &[] } else { keys };
    let checks: Vec<Request> = asked.iter().map(|key| Request::Check { keys: vec![key.clone()] }).collect();
    connection.send(&encode(&checks, &Limits::default())?).await?;
    let mut missing = Vec::new();
    for key in asked {
        if connection.receive(Expect::Ready).await? == Reply::Ready(false) {
            missing.push(key);
        }
    }
    let named = if missing.is_empty() { keys.iter().collect() } else { missing };
    Ok(named.into_iter().map(|key| user_key(key)).collect())
}

/// Interprets the reply to a wait.
fn over(reply: Reply) -> Result<(), Kind> {
    if reply == Reply::StopWaiting { Ok(()) } else { Err(unexpected_reply()) }
}

/// Encodes the requests, if they respect the server's limits.
fn encode(requests: &[Request], limits: &Limits) -> Result<Vec<u8>, Kind> {
    let mut bytes = Vec::new();
    for request in requests {
        let start = bytes.len();
        request.encode(&mut bytes);
        Frame::find(&bytes[start..], limits).map_err(Kind::Invalid)?;
    }
    Ok(bytes)
}

/// The deadline for the server's answer to a question that precedes a wait with the given deadline.
fn with_grace(deadline: Instant) -> Instant {
    deadline.max(Instant::now() + GRACE)
}

/// The error for a reply of an unexpected kind. Decoding checks all other replies, so this is a wrong WAIT or PING.
pub(super) fn unexpected_reply() -> Kind {
    Kind::Protocol(WireError::UnknownAnswer(1))
}
