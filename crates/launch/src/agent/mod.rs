//! The agent of one node: meets the others, starts its workers, watches over them, starts them again, and reports.
//!
//! - [`node`]: opens everything, lets the loop run, reports and cleans up.
//! - [`machine`]: what follows what; pure.
//! - [`run`]: the loop that waits for everything at once and does what the machine wants.
//! - [`meet`]: opens the rendezvous; [`endpoint`], [`master`]: where agents meet, and where their workers do.
//! - [`membership`]: this node's part in the rendezvous, as a task.
//! - [`live_status`]: the line on a terminal that tells how the job is.
//! - [`log`]: what LOGLEVEL asks for beyond that.
//! - [`lookout`]: who has gone, as the host of the store sees it.
//! - [`workers`]: the present attempt: its workers in the words of configuration and report.
//! - [`waits`]: waits for deaths and signals in the runtime.
//! - [`observe`]: what is known when the nodes do not meet, for [`crate::diagnose`].

mod endpoint;
mod live_status;
mod log;
mod lookout;
mod machine;
mod master;
mod meet;
mod membership;
mod node;
mod observe;
mod run;
mod waits;
mod workers;

pub use node::{Verdict, run};
