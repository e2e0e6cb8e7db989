//! Why a rendezvous did not come about, from what was observed; and what the last lines of a failed worker mean.
//!
//! - [`observed`]: facts in, an ordered list of likely causes out: a pure function.
//! - [`batch`]: what the batch system says of the job's nodes.
//! - [`port`]: who listens on a port of this host.
//! - [`tail`]: known texts in a worker's last lines.
//!
//! Left out: observing itself, but for the look into `/proc`; the agent does it.

pub mod batch;
pub mod observed;
pub mod port;
pub mod tail;

pub use batch::{Batch, BatchSystem};
pub use observed::{Advice, ConnectFailure, Diagnosis, Observed, diagnose};
pub use port::{PortOwner, port_owner};
pub use tail::{Hint, tail_hint};
