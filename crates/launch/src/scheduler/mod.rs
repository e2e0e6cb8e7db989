//! Fills in rendezvous flags from the job in which this agent was started.
//!
//! [`ask()`] asks a command of the scheduler. [`apply()`] fills in the flags that the user did not give, and refuses flags that cannot work. What a scheduler, MPI's launcher or
//! a host file says of the job is read by [`lockstep_contract::scheduler`], which the training programs use, too.

mod apply;
mod ask;

pub use apply::{Taken, apply, meeting_point, without_job};
pub use ask::ask;
pub use lockstep_contract::scheduler::{Allocation, HostFileError, Scheduler, Started, expand};
