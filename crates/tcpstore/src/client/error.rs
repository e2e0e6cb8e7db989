//! What can go wrong between a client and a store, in words that say where, with which key, and after how long.

use std::fmt;
use std::io;
use std::time::Duration;

use crate::wire::WireError;

/// An operation that failed. Reads after "failed to".
#[derive(Debug)]
pub struct Error {
    /// What was to be done, as a verb: `connect to`, `set`, `wait for`.
    pub operation: &'static str,
    /// The keys that it was about, as the user named them.
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
    /// The host's name has no address.
    #[error("the host's name does not resolve ({0}); try `getent hosts` with it")]
    Unresolved(io::Error),
    /// The host is there, but no process listens on the port.
    #[error("nobody listens on this port; start the process that hosts the store, or correct the address")]
    Refused,
    /// The host does not answer.
    #[error("the host cannot be reached ({0}); check the route and the firewall")]
    Unreachable(io::Error),
    /// The connection stands, but nothing was said on it.
    #[error(
        "something accepts connections there but says nothing: it is not a TCPStore, or its process is stopped; \
         `ss -ltnp` on that host shows whose port it is"
    )]
    Mute,
    /// Something else than a store answers.
    #[error(
        "what listens there is not a TCPStore: it answered {got:?}; `ss -ltnp` on that host shows whose port it is"
    )]
    Stranger {
        /// The first bytes of the answer, as text.
        got: String,
    },
    /// Whatever listens closes the connection before it answers.
    #[error("what listens there closes every connection at once: it is not a TCPStore, or it takes no more clients")]
    HungUp,
    /// The keys did not come in time.
    #[error("still missing: {}", list(missing))]
    Missing {
        /// Those that are not there.
        missing: Vec<String>,
    },
    /// The server did not answer in time.
    #[error("the server did not answer in time")]
    TimedOut,
    /// The connection is lost, now or at an earlier operation; the client stays lost.
    #[error("the server closed the connection: its process has ended, or it refused a request")]
    Closed,
    /// The system's own words.
    #[error(transparent)]
    Io(io::Error),
    /// The server's answer makes no sense.
    #[error("the server's answer makes no sense: {0}")]
    Protocol(WireError),
    /// A server would refuse the request, so that it was not sent.
    #[error("not sent, since a store refuses it: {0}")]
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

/// A few names, quoted, and how many more there are.
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
