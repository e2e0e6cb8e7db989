//! The agent of one node: finds the other agents, starts its workers, watches and restarts them, and reports.
//!
//! - [`node`]: the agent's life on its node, from the rendezvous to the report.
//! - [`state_machine`]: which actions follow which events; pure.
//! - [`run`]: what the loop works on, and the loop, which waits for all events and executes the actions of the state machine.
//! - [`ending`]: the grace period of workers, and the end of what they left behind.
//! - [`batch_job`], [`time_limit`]: the scheduler's job: when it ends, how long workers may take to end, what follows, and why it was
//!   started again.
//! - [`signals`]: what follows a signal to the agent.
//! - [`meet`], [`endpoint`]: the way to the rendezvous, this machine's addresses, and the known facts when the nodes do not meet.
//! - [`membership`]: this node's part in the rendezvous, as a task.
//! - [`master`]: the store of the workers.
//! - [`workers`]: the workers of an attempt, between configuration and report.
//! - [`judge`]: the facts for the verdict on a failure, and the verdict, by [`crate::verdict`].
//! - [`hang`]: the stacks of the living workers when a rank has waited in vain.
//! - [`display`]: the status line on a terminal, and the log messages that LOGLEVEL selects.

mod batch_job;
mod display;
mod ending;
mod endpoint;
mod hang;
mod judge;
mod kernel_sleep;
mod master;
mod meet;
mod membership;
mod node;
mod run;
mod signals;
mod state_machine;
mod time_limit;
mod workers;

pub use node::{Ended, run};
pub use signals::settle;
