//! Explains why a rendezvous failed, from observed facts.
//!
//! - [`observed`]: the facts; [`diagnosis`]: a pure function from them to an ordered list of likely causes.
//! - [`port`]: the process that listens on a port of this host.
//!
//! Not here: collecting the facts, except for those in `/proc`; the agent does that.

pub mod diagnosis;
pub mod observed;
pub mod port;

pub use diagnosis::{Advice, Diagnosis, diagnose};
pub use observed::{ConnectFailure, Observed};
pub use port::{PortOwner, port_owner};
