//! Why an operation failed: the store, the keys, the elapsed time and the cause, in one line.

use std::fmt;
use std::io;
use std::time::Duration;

use crate::wire::WireError;

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
