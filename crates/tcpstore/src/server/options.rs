//! What a server's host may set. Left out: the address, which the host chooses by the listener that it hands over.

use std::time::Duration;

use crate::wire::Limits;

/// How a server works. The defaults suit a job of thousands of ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Threads that serve connections, beside the one that accepts them. 2.
    pub worker_threads: usize,
    /// What one message may ask for.
    pub limits: Limits,
    /// Bytes that all keys and values together may take. 1 GiB. A request that would go beyond closes its connection.
    pub max_bytes: usize,
    /// How many connections there may be at once; more are closed as they come. No limit by default: the limit of open files
    /// (`ulimit -n`) is one, and reaching it delays newcomers, but harms nobody who is connected.
    pub max_connections: Option<usize>,
    /// Within this time of connecting a peer must have opened with VALIDATE. 10 s.
    pub handshake_timeout: Duration,
    /// A request must be there whole within this time of its first byte. 120 s.
    pub request_timeout: Duration,
    /// A peer that does not read its replies must take at least one byte within this time. 120 s.
    pub write_timeout: Duration,
    /// After this time of silence the kernel asks whether the peer's host still lives, three times at a sixth of the time;
    /// then a connection to a host that is gone is closed. 60 s.
    pub keepalive: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            worker_threads: 2,
            limits: Limits::default(),
            max_bytes: 1 << 30,
            max_connections: None,
            handshake_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(120),
            write_timeout: Duration::from_secs(120),
            keepalive: Duration::from_secs(60),
        }
    }
}
