//! The client: every operation of a store, each with a deadline, and its errors, which name the store, the keys and the elapsed
//! time. Not here: rendezvous, and prefixes for keys.
//!
//! A client uses one connection for operations that the server answers immediately and opens others for waits, because
//! a waiting connection can carry nothing else. So several tasks can share a client without blocking each other.
//! Dropping a future closes its connection and does not affect the others.

mod connection;

use std::time::Duration;
use std::{fmt, io};

use connection::{Call, Requests, Target, random, unexpected_reply};

use crate::wire::{KEY_PREFIX, Limits, Reply, Request, WireError, user_key, wire_key};

/// Options of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientOptions {
    /// How long a server that accepted the connection may take for its first answer. After that it is not considered a
    /// store. 5 s.
    pub handshake_timeout: Duration,
    /// Time limit of operations that the server answers immediately. 30 s.
    pub operation_timeout: Duration,
    /// Limits for keys and values, which the server would refuse otherwise, and for the largest accepted reply.
    pub limits: Limits,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            handshake_timeout: Duration::from_secs(5),
            operation_timeout: Duration::from_secs(30),
            limits: Limits { max_reply: 1 << 30, ..Limits::default() },
        }
    }
}

/// A client of a store. Clones share its connections.
///
/// Keys have the names that libtorch's clients use. Operations that change the store return when the server has
/// completed them (libtorch's own `set` does not wait for that). After the server has closed the connection, every
/// operation fails: a store that appears later at the same address is another store.
#[derive(Clone, Debug)]
pub struct Client {
    requests: Requests,
}

impl Client {
    /// Connects to a store that may not be up yet: retries until `timeout`.
    ///
    /// # Errors
    /// After `timeout`: no process listens, the host cannot be reached or its name does not resolve. Within
    /// [`ClientOptions::handshake_timeout`] of connecting: the listener is not a store.
    pub async fn connect(host: &str, port: u16, timeout: Duration) -> Result<Self, Error> {
        Self::connect_with(host, port, timeout, ClientOptions::default()).await
    }

    /// [`Self::connect`] with options.
    ///
    /// # Errors
    /// As for [`Self::connect`].
    pub async fn connect_with(host: &str, port: u16, timeout: Duration, options: ClientOptions) -> Result<Self, Error> {
        let call = Call::new("connect to", &[]);
        let ClientOptions { handshake_timeout, operation_timeout, limits } = options;
        let target = Target { host: host.to_owned(), port, handshake_timeout, limits };
        let peer = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let requests = Requests::open(target, peer.clone(), call.started + timeout, operation_timeout).await;
        requests.map(|requests| Self { requests }).map_err(|kind| call.failed(&peer, kind))
    }

    /// Returns the same client with another time limit for operations that the server answers immediately.
    #[must_use]
    pub fn with_operation_timeout(&self, operation_timeout: Duration) -> Self {
        Self { requests: self.requests.with_operation_timeout(operation_timeout) }
    }

    /// The store's address, as `host:port`.
    pub fn peer(&self) -> &str {
        self.requests.peer()
    }

    /// Sets a key.
    ///
    /// # Errors
    /// The server does not answer in time, the connection is lost, or a key or value is too
    /// large.
    pub async fn set(&self, key: &str, value: &[u8]) -> Result<(), Error> {
        self.requests.confirmed("set", &[key], Request::Set { key: wire_key(key), value: value.to_vec() }).await
    }

    /// Sets several keys.
    ///
    /// # Errors
    /// As for [`Self::set`].
    pub async fn multi_set(&self, entries: &[(&str, &[u8])]) -> Result<(), Error> {
        let keys: Vec<&str> = entries.iter().map(|&(key, _)| key).collect();
        let entries = entries.iter().map(|&(key, value)| (wire_key(key), value.to_vec())).collect();
        self.requests.confirmed("set", &keys, Request::MultiSet { entries }).await
    }

    /// Appends to the value of a key. A missing key counts as empty.
    ///
    /// # Errors
    /// As for [`Self::set`].
    pub async fn append(&self, key: &str, value: &[u8]) -> Result<(), Error> {
        self.requests
            .confirmed("append to", &[key], Request::Append { key: wire_key(key), value: value.to_vec() })
            .await
    }

    /// Appends a value to a queue.
    ///
    /// # Errors
    /// As for [`Self::set`].
    pub async fn queue_push(&self, key: &str, value: &[u8]) -> Result<(), Error> {
        self.requests
            .confirmed("push to the queue", &[key], Request::QueuePush { key: wire_key(key), value: value.to_vec() })
            .await
    }

    /// Returns the value of a key; waits for the key if it is missing.
    ///
    /// # Errors
    /// [`Kind::Missing`] after `timeout`, and as for [`Self::set`].
    pub async fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, Error> {
        let keys = [key];
        let call = Call::new("get", &keys);
        let mut values = self.requests.get_all(&call, timeout).await?;
        values.pop().ok_or_else(|| call.failed(self.peer(), unexpected_reply()))
    }

    /// Returns the values of several keys; waits for those that are missing.
    ///
    /// # Errors
    /// As for [`Self::get`].
    pub async fn multi_get(&self, keys: &[&str], timeout: Duration) -> Result<Vec<Vec<u8>>, Error> {
        self.requests.get_all(&Call::new("get", keys), timeout).await
    }

    /// Returns the value of a key if the key exists now.
    ///
    /// # Errors
    /// As for [`Self::set`].
    pub async fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>, Error> {
        let keys = [key];
        let call = Call::new("get", &keys);
        let found =
            self.requests.get_if_all_exist(&call.wire_keys(), call.started + self.requests.operation_timeout).await;
        found.map(|found| found.and_then(|mut values| values.pop())).map_err(|kind| call.failed(self.peer(), kind))
    }

    /// Returns the values of several keys if all of them exist now.
    ///
    /// # Errors
    /// As for [`Self::set`].
    pub async fn try_multi_get(&self, keys: &[&str]) -> Result<Option<Vec<Vec<u8>>>, Error> {
        let call = Call::new("get", keys);
        let found =
            self.requests.get_if_all_exist(&call.wire_keys(), call.started + self.requests.operation_timeout).await;
        found.map_err(|kind| call.failed(self.peer(), kind))
    }

    /// Adds to the number in a key (0 if the key is missing) and returns the sum.
    ///
    /// # Errors
    /// As for [`Self::set`]; if the value is not a number, the server closes the connection. After an error it is
    /// unknown whether the number was added.
    pub async fn add(&self, key: &str, amount: i64) -> Result<i64, Error> {
        self.requests.number("add to", &[key], Request::Add { key: wire_key(key), amount }).await
    }

    /// Sets a key to `desired` if its value is `expected`, or if it is missing and `expected` is empty. Returns the
    /// value of the key afterwards. If the key is missing and `expected` is not empty, returns `expected`, and the key
    /// stays missing.
    ///
    /// # Errors
    /// As for [`Self::set`].
    pub async fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Vec<u8>, Error> {
        let request =
            Request::CompareSet { key: wire_key(key), expected: expected.to_vec(), desired: desired.to_vec() };
        match self.requests.quick("compare and set", &[key], request).await? {
            (Reply::Value(value), _) => Ok(value),
            (_, call) => Err(call.failed(self.peer(), unexpected_reply())),
        }
    }

    /// Returns true if all these keys exist. A queue exists while it is not empty.
    ///
    /// # Errors
    /// As for [`Self::set`].
    pub async fn check(&self, keys: &[&str]) -> Result<bool, Error> {
        let request = Request::Check { keys: Call::new("check", keys).wire_keys() };
        match self.requests.quick("check", keys, request).await? {
            (Reply::Ready(ready), _) => Ok(ready),
            (_, call) => Err(call.failed(self.peer(), unexpected_reply())),
        }
    }

    /// Waits until all these keys exist. A wait that expires is cancelled, and the client stays usable.
    ///
    /// # Errors
    /// [`Kind::Missing`] after `timeout` (at most 2 s later, if the server does not answer), and as for [`Self::set`].
    pub async fn wait(&self, keys: &[&str], timeout: Duration) -> Result<(), Error> {
        let call = Call::new("wait for", keys);
        let waited = self.requests.wait_for(&call.wire_keys(), call.started + timeout).await;
        waited.map_err(|kind| call.failed(self.peer(), kind))
    }

    /// Returns the number of keys, including `init/`, excluding queues.
    ///
    /// # Errors
    /// As for [`Self::set`].
    pub async fn num_keys(&self) -> Result<i64, Error> {
        self.requests.number("count the keys of", &[], Request::NumKeys).await
    }

    /// Deletes a key and returns true if it existed.
    ///
    /// # Errors
    /// As for [`Self::set`].
    pub async fn delete(&self, key: &str) -> Result<bool, Error> {
        Ok(self.requests.number("delete", &[key], Request::Delete { key: wire_key(key) }).await? > 0)
    }

    /// Returns the number of values in a queue.
    ///
    /// # Errors
    /// As for [`Self::set`].
    pub async fn queue_len(&self, key: &str) -> Result<i64, Error> {
        self.requests.number("measure the queue", &[key], Request::QueueLen { key: wire_key(key) }).await
    }

    /// Removes and returns the first value of a queue; waits for a value if the queue is empty.
    ///
    /// # Errors
    /// As for [`Self::get`].
    pub async fn queue_pop(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, Error> {
        let keys = [key];
        let call = Call::new("pop from the queue", &keys);
        let deadline = call.started + timeout;
        loop {
            if let Some(value) = self.try_queue_pop(key).await? {
                return Ok(value);
            }
            // Another client may take the value after our wait has ended.
            self.requests.wait_for(&call.wire_keys(), deadline).await.map_err(|kind| call.failed(self.peer(), kind))?;
        }
    }

    /// Removes and returns the first value of a queue if it has one now.
    ///
    /// # Errors
    /// As for [`Self::set`].
    pub async fn try_queue_pop(&self, key: &str) -> Result<Option<Vec<u8>>, Error> {
        match self.requests.quick("pop from the queue", &[key], Request::QueuePop { key: wire_key(key) }).await? {
            (Reply::Popped { value, .. }, _) => Ok(value),
            (_, call) => Err(call.failed(self.peer(), unexpected_reply())),
        }
    }

    /// Returns the names of all keys, sorted, without queues and without `init/`.
    ///
    /// # Errors
    /// As for [`Self::set`].
    pub async fn list_keys(&self) -> Result<Vec<String>, Error> {
        match self.requests.quick("list the keys of", &[], Request::ListKeys).await? {
            (Reply::Keys(keys), _) => {
                let mut keys: Vec<String> =
                    keys.iter().filter(|key| key.starts_with(KEY_PREFIX)).map(|key| user_key(key)).collect();
                keys.sort();
                Ok(keys)
            }
            (_, call) => Err(call.failed(self.peer(), unexpected_reply())),
        }
    }

    /// [Leaves the protocol](crate::wire::SWITCH): returns the connection, on which the server speaks next. Other
    /// operations of this client and of its clones open a new one.
    ///
    /// # Errors
    /// As for [`Self::set`].
    pub async fn switch(&self) -> Result<tokio::net::TcpStream, Error> {
        let call = Call::new("leave the protocol of", &[]);
        let switched = self.requests.switch(call.started + self.requests.operation_timeout).await;
        switched.map_err(|kind| call.failed(self.peer(), kind))
    }

    /// Checks that the server still answers and returns the round-trip time.
    ///
    /// # Errors
    /// As for [`Self::set`].
    pub async fn ping(&self) -> Result<Duration, Error> {
        let nonce = random() as u32;
        match self.requests.quick("ping", &[], Request::Ping { nonce }).await? {
            (Reply::Nonce(answer), call) if answer == nonce => Ok(call.started.elapsed()),
            (_, call) => Err(call.failed(self.peer(), unexpected_reply())),
        }
    }
}

/// An operation that failed. Reads after "failed to".
#[derive(Debug)]
pub struct Error {
    /// The operation as a verb: `connect to`, `set`, `wait for`.
    pub operation: &'static str,
    /// The keys of the operation, as the user named them.
    pub keys: Vec<String>,
    /// The store, as `host:port`.
    pub peer: String,
    /// Time since the operation began.
    pub elapsed: Duration,
    /// What went wrong.
    pub kind: Kind,
}

/// What went wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Kind {
    /// The host name has no address.
    #[error("the host name does not resolve ({0}); check it with `getent hosts`")]
    Unresolved(io::Error),
    /// The host answers, but no process listens on the port.
    #[error("no process listens on this port; start the process that hosts the store, or correct the address")]
    Refused,
    /// The host does not answer.
    #[error("the host cannot be reached ({0}); check the route and the firewall")]
    Unreachable(io::Error),
    /// The connection was accepted, but no answer arrived.
    #[error(
        "something accepts connections there but does not answer: it is not a TCPStore, or its process is stopped; \
         `ss -ltnp` on that host shows whose port it is"
    )]
    Mute,
    /// Something other than a store answers.
    #[error(
        "what listens there is not a TCPStore: it answered {got:?}; `ss -ltnp` on that host shows which process owns the port"
    )]
    NotAStore {
        /// The first bytes of the answer, as text.
        got: String,
    },
    /// The listener closes the connection before it answers.
    #[error("what listens there closes every connection at once: it is not a TCPStore, or it accepts no more clients")]
    HungUp,
    /// The keys were not set in time.
    #[error("still missing: {}", list(missing))]
    Missing {
        /// The keys that do not exist.
        missing: Vec<String>,
    },
    /// The server did not answer in time.
    #[error("the server did not answer in time")]
    TimedOut,
    /// The connection was lost, now or at an earlier operation. The client does not reconnect.
    #[error("the server closed the connection: its process has ended, or it refused a request")]
    Closed,
    /// An error of the operating system.
    #[error(transparent)]
    Io(io::Error),
    /// The server's answer is not valid.
    #[error("the server's answer makes no sense: {0}")]
    Protocol(WireError),
    /// The server would refuse the request, so the client did not send it.
    #[error("not sent, because a store refuses it: {0}")]
    Invalid(WireError),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.operation)?;
        if !self.keys.is_empty() {
            write!(f, " {} in", list(&self.keys))?;
        }
        write!(f, " the store at {} ({:.2} s): {}", self.peer, self.elapsed.as_secs_f64(), self.kind)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.kind {
            Kind::Unresolved(error) | Kind::Unreachable(error) | Kind::Io(error) => Some(error),
            Kind::Protocol(error) | Kind::Invalid(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for Kind {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe => Self::Closed,
            _ => Self::Io(error),
        }
    }
}

/// The first few names, quoted, and the number of the others.
fn list(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<String> = names.iter().take(SHOWN).map(|name| format!("{name:?}")).collect();
    match names.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_operation_keys_peer_time_and_cause() {
        let missing = vec!["rank/3".to_owned()];
        let error = Error {
            operation: "wait for",
            keys: (0..10).map(|rank| format!("rank/{rank}")).collect(),
            peer: "node7:29500".to_owned(),
            elapsed: Duration::from_millis(1500),
            kind: Kind::Missing { missing },
        };
        assert_eq!(
            error.to_string(),
            "wait for \"rank/0\", \"rank/1\", \"rank/2\", \"rank/3\", \"rank/4\", \"rank/5\", \"rank/6\", \"rank/7\" and 2 more in \
             the store at node7:29500 (1.50 s): still missing: \"rank/3\""
        );
    }
}
