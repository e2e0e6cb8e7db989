//! Runs a client's operations: which connection carries a request, deadlines, and the cancellation of waits. Not here:
//! the meaning of each operation.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex as StdMutex, PoisonError};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};

use super::connection::{Connection, Target, random};
use super::{Client, Error, Kind};
use crate::wire::{Expect, Frame, Key, Limits, Reply, Request, SWITCH, Value, WireError, user_key, wire_key};

/// If the server does not answer at all, a wait ends at most this much after its deadline.
const GRACE: Duration = Duration::from_secs(2);
/// Number of connections that are kept for later waits.
const IDLE: usize = 4;
/// When a wait for more keys than this expires, the client does not ask which of them are missing.
const MOST_ASKED: usize = 1024;

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) target: Target,
    pub(super) peer: String,
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

impl Client {
    /// Runs an operation with one reply.
    pub(super) async fn quick<'a>(
        &self,
        operation: &'static str,
        keys: &'a [&'a str],
        request: Request,
    ) -> Result<(Reply, Call<'a>), Error> {
        let call = Call::new(operation, keys);
        let reply = self.exchange(&[request], call.started + self.operation_timeout).await;
        match reply.and_then(|mut replies| replies.pop().ok_or_else(odd_answer)) {
            Ok(reply) => Ok((reply, call)),
            Err(kind) => Err(call.failed(self.peer(), kind)),
        }
    }

    /// Runs an operation whose reply is a number.
    pub(super) async fn number(&self, operation: &'static str, keys: &[&str], request: Request) -> Result<i64, Error> {
        match self.quick(operation, keys, request).await? {
            (Reply::Number(number), _) => Ok(number),
            (_, call) => Err(call.failed(self.peer(), odd_answer())),
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
            Ok(_) => Err(call.failed(self.peer(), odd_answer())),
            Err(kind) => Err(call.failed(self.peer(), kind)),
        }
    }

    pub(super) async fn get_all(&self, call: &Call<'_>, timeout: Duration) -> Result<Vec<Value>, Error> {
        let (keys, deadline) = (call.wire_keys(), call.started + timeout);
        let wait_and_look = async {
            loop {
                if let Some(values) = self.look(&keys, patient(deadline)).await? {
                    return Ok(values);
                }
                // A key may be deleted between the wait and the read.
                self.wait_apart(&keys, deadline).await?;
            }
        };
        wait_and_look.await.map_err(|kind| call.failed(self.peer(), kind))
    }

    /// Returns the values of the keys if all of them exist now.
    pub(super) async fn look(&self, keys: &[Key], deadline: Instant) -> Result<Option<Vec<Value>>, Kind> {
        let check = Request::Check { keys: keys.to_vec() };
        let get = Request::MultiGet { keys: keys.to_vec() };
        match <[Reply; 2]>::try_from(self.exchange(&[check, get], deadline).await?) {
            Ok([Reply::Ready(ready), Reply::Values(values)]) => Ok(ready.then_some(values)),
            _ => Err(odd_answer()),
        }
    }

    pub(super) async fn wait_for(&self, keys: &[Key], deadline: Instant) -> Result<(), Kind> {
        let check = self.exchange(&[Request::Check { keys: keys.to_vec() }], patient(deadline)).await?;
        if check == [Reply::Ready(true)] { Ok(()) } else { self.wait_apart(keys, deadline).await }
    }

    /// Sends requests on the main connection and receives their replies, if they have any.
    async fn exchange(&self, requests: &[Request], deadline: Instant) -> Result<Vec<Reply>, Kind> {
        let bytes = encode(requests, &self.inner.target.limits)?;
        let exchange = async {
            let mut slot = self.inner.main.lock().await;
            let mut connection = match slot.take() {
                Some(connection) => connection,
                None => self.inner.open(deadline).await?,
            };
            let mut replies = Vec::new();
            connection.send(&bytes).await?;
            for expect in requests.iter().filter_map(Expect::after) {
                replies.push(connection.receive(expect).await?);
            }
            *slot = Some(connection);
            Ok(replies)
        };
        self.inner.check_lost()?;
        let outcome = timeout_at(deadline, exchange).await.unwrap_or(Err(Kind::TimedOut));
        self.inner.note_loss(outcome)
    }

    /// Waits on a separate connection.
    async fn wait_apart(&self, keys: &[Key], deadline: Instant) -> Result<(), Kind> {
        self.inner.check_lost()?;
        let bytes = encode(&[Request::Wait { keys: keys.to_vec() }], &self.inner.target.limits)?;
        let outcome = async {
            let mut connection = self.inner.borrow(deadline).await?;
            connection.send(&bytes).await?;
            let waited = match timeout_at(deadline, connection.receive(Expect::Wait)).await {
                Ok(reply) => over(reply?),
                Err(_) => timeout_at(Instant::now() + GRACE, call_off(&mut connection, keys))
                    .await
                    .unwrap_or(Err(Kind::TimedOut))?,
            };
            self.inner.give_back(connection);
            waited
        };
        self.inner.note_loss(outcome.await)
    }
}

impl Inner {
    pub(super) fn new(target: Target, peer: String, main: Connection) -> Self {
        Self {
            target,
            peer,
            main: Mutex::new(Some(main)),
            idle: StdMutex::new(Vec::new()),
            lost: AtomicBool::new(false),
        }
    }

    /// Takes the main connection out of the protocol.
    pub(super) async fn switch(&self, deadline: Instant) -> Result<TcpStream, Kind> {
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
            None => self.open(patient(deadline)).await,
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

/// Cancels a wait. The inner result is that of the wait, which may have ended in the meantime.
async fn call_off(connection: &mut Connection, keys: &[Key]) -> Result<Result<(), Kind>, Kind> {
    connection.send(&encode(&[Request::CancelWait], &Limits::default())?).await?;
    match connection.receive(Expect::Wait).await? {
        Reply::WaitCanceled => Ok(Err(Kind::Missing { missing: missing(connection, keys).await? })),
        _ => match connection.receive(Expect::Wait).await? {
            Reply::WaitCanceled => Ok(Ok(())),
            _ => Err(odd_answer()),
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
    if reply == Reply::StopWaiting { Ok(()) } else { Err(odd_answer()) }
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
fn patient(deadline: Instant) -> Instant {
    deadline.max(Instant::now() + GRACE)
}

/// The error for a reply of an unexpected kind. Decoding checks all other replies, so this is a wrong WAIT or PING.
pub(super) fn odd_answer() -> Kind {
    Kind::Protocol(WireError::UnknownAnswer(1))
}
