//! Explains why a rendezvous failed, from observed facts.
//!
//! - [`observed`]: a pure function from facts to an ordered list of likely causes.
//! - [`port`]: the process that listens on a port of this host.
//!
//! Not here: collecting the facts, except for those in `/proc`; the agent does that.

pub mod observed;
pub mod port;

pub use observed::{Advice, ConnectFailure, Diagnosis, Observed, diagnose};
pub use port::{PortOwner, port_owner};
