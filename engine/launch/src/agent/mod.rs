//! The agent of one node: finds the other agents, starts its workers, watches and restarts them, and reports.
//!
//! - [`node`]: the agent's life on its node, from the rendezvous to the report.
//! - [`display`]: the status line on a terminal, and the log messages that LOGLEVEL selects.
//! - [`state_machine`]: which actions follow which events; pure.
//! - [`run`]: the loop, which owns all parts, waits for all events and executes the actions of the state machine. No part but [`node`] imports the loop.
//! - [`ending`]: the grace period of workers, and the end of what they left behind.
//! - [`batch_job`]: the scheduler's job: when it ends, how long workers may take to end, what follows, and why it was
//!   started again.
//! - [`signals`]: what follows a signal to the agent.
//! - [`meet`]: the way to the rendezvous, this machine's addresses, and the known facts when the nodes do not meet.
//! - [`membership`]: this node's part in the rendezvous, as a task, and the store of the workers.
//! - [`workers`]: the workers of an attempt, between configuration and report, and those that sleep in the kernel.
//! - [`recording`]: the recording of this node, for `--record`.
//! - [`judge`]: the facts for the verdict on a failure, the verdict, by [`crate::verdict`], and the stacks of the living workers when a
//!   rank has waited in vain.

mod batch_job;
mod display;
mod ending;
mod judge;
mod meet;
mod membership;
mod node;
mod recording;
mod run;
mod signals;
mod state_machine;
mod workers;

pub use node::{Ended, run};
pub use signals::settle;
