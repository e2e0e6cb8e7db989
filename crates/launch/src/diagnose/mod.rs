//! Explains why a rendezvous failed, from observed facts, and what the last lines of a failed worker mean.
//!
//! - [`observed`]: a pure function from facts to an ordered list of likely causes.
//! - [`port`]: the process that listens on a port of this host.
//! - [`tail`]: known texts in a worker's last lines.
//!
//! Not here: collecting the facts, except for those in `/proc`; the agent does that.

pub mod observed;
pub mod port;
pub mod tail;

pub use observed::{Advice, ConnectFailure, Diagnosis, Observed, diagnose};
pub use port::{PortOwner, port_owner};
pub use tail::{Hint, tail_hint};
