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
    /// Bytes that the store may take in all. 512 MiB. At most half of them are for connections: 16 KiB for each, requests and
    /// replies that are under way, and keys that are waited for (these at most a quarter). The rest is for keys and values.
    ///
    /// A request that would make keys and values grow beyond that closes its connection, and so does one that would give a
    /// single connection more than a quarter for requests, replies and waits. The last quarter of the store is closed to a
    /// connection that wrote more than a quarter's worth of the keys and values that are there: so one client that fills the
    /// store is refused while the others can still write. What a connection wrote is its own until that is deleted or another
    /// writes it. A client that fills the store through one new connection after the other is not kept from it.
    ///
    /// Where connections together would have more than their half, the one that has stood still for longest in the middle of a
    /// request or a reply is closed; for waits, the largest.
    pub max_bytes: usize,
    /// How many connections there may be at once; more are closed as they come. No limit by default, besides the one that
    /// follows from `max_bytes` (16,384). The limit of open files (`ulimit -n`) is another; reaching it delays newcomers, but
    /// harms nobody who is connected.
    pub max_connections: Option<usize>,
    /// Within this time of connecting a peer must have opened with VALIDATE. 10 s.
    pub handshake_timeout: Duration,
    /// A request must be there whole within this time of its first byte. 120 s.
    pub request_timeout: Duration,
    /// A peer that does not read its replies must take at least one byte within this time. 120 s.
    pub write_timeout: Duration,
    /// Where there is no room for a reply, it waits, and a peer that neither sent nor took a byte of its own request or reply
    /// for this time is closed. 5 s.
    pub stall_timeout: Duration,
    /// After this time of silence the kernel asks whether the peer's host still lives, three times at a sixth of the time;
    /// then a connection to a host that is gone is closed. 60 s.
    pub keepalive: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            worker_threads: 2,
            limits: Limits::default(),
            max_bytes: 512 << 20,
            max_connections: None,
            handshake_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(120),
            write_timeout: Duration::from_secs(120),
            stall_timeout: Duration::from_secs(5),
            keepalive: Duration::from_secs(60),
        }
    }
}
