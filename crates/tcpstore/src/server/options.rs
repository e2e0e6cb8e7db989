//! Options of a server. Not here: the address, which is that of the listener.

use std::time::Duration;

use crate::wire::Limits;

/// Options of a server. The defaults suit a job of thousands of ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Threads that serve connections, in addition to the one that accepts them. 2.
    pub worker_threads: usize,
    /// Limits of a single message.
    pub limits: Limits,
    /// Bytes that the store may take in total. 512 MiB. At most half of them are for connections: 16 KiB for each,
    /// requests and replies in progress, and keys in waits (at most a quarter). The rest is for keys and values.
    ///
    /// A request that would make keys and values exceed their part closes its connection. So does one that would give a
    /// single connection more than a quarter for requests, replies and waits. The last quarter of the store is closed
    /// to a connection that wrote more than a quarter of the keys and values that exist: one client that fills the
    /// store is refused while others can still write. A value counts for the connection that wrote it until it is
    /// deleted or overwritten. A client that fills the store through many new connections is not stopped.
    ///
    /// If all connections together would exceed their half, the connection that has been stalled longest in the middle
    /// of a request or a reply is closed; among waits, the largest.
    pub max_bytes: usize,
    /// Maximum number of connections; further ones are closed when they connect. No limit by default, except for the
    /// one that follows from `max_bytes` (16,384). The limit of open files (`ulimit -n`) applies, too: reaching it
    /// delays new connections but does not affect existing ones.
    pub max_connections: Option<usize>,
    /// Time limit for VALIDATE after connecting. 10 s.
    pub handshake_timeout: Duration,
    /// Time limit for a complete request after its first byte. 120 s.
    pub request_timeout: Duration,
    /// A peer that does not read its replies must accept at least one byte within this time. 120 s.
    pub write_timeout: Duration,
    /// If there is no room for a reply, the reply waits, and a peer that has neither sent nor accepted a byte of its
    /// own request or reply for this time is closed. 5 s.
    pub stall_timeout: Duration,
    /// Whether clients may leave the protocol ([`SWITCH`](crate::wire::SWITCH)). Their connections wait until they are taken. No.
    pub hands_over: bool,
    /// After this time without traffic the kernel probes the peer's host, three times at a sixth of the time, and then
    /// closes the connection. 60 s.
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
            hands_over: false,
            keepalive: Duration::from_secs(60),
        }
    }
}
