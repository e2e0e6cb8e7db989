//! The agent of one node: finds the other agents, starts its workers, watches and restarts them, and reports.
//!
//! - [`state_machine`]: which actions follow which events; pure.
//! - [`state`]: what the loop and its parts work on.
//! - [`run`]: the loop that waits for all events and executes the actions of the state machine.
//! - [`clearing`]: the end of what workers left behind.
//! - [`batch_job`], [`time_limit`], [`scheduler`]: the scheduler's job: when it ends, how long workers may take to end, and what follows.
//! - [`requeue`]: why the scheduler has started the job again.
//! - [`signals`]: what follows a signal to the agent.
//! - [`endpoint`], [`master`]: the stores of the agents and of their workers.
//! - [`membership`]: this node's part in the rendezvous, as a task.
//! - [`live_status`]: the status line on a terminal.
//! - [`log`]: the log messages that LOGLEVEL selects.
//! - [`workers`]: the workers of an attempt, between configuration and report.
//! - [`facts`], [`judge`]: the facts for the verdict on a failure, and the verdict, by [`crate::verdict`].
//! - [`hang`]: the stacks of the living workers when a rank has waited in vain.
//! - [`diagnostic_input`]: the known facts when the nodes do not meet, for [`crate::diagnose`].

mod batch_job;
mod clearing;
mod diagnostic_input;
mod endpoint;
mod facts;
mod gloo;
mod hang;
mod judge;
mod live_status;
mod log;
mod master;
mod meet;
mod membership;
mod node;
mod requeue;
mod run;
mod scheduler;
mod signals;
mod state;
mod state_machine;
mod time_limit;
mod waits;
mod workers;

pub use node::{Ended, run};
