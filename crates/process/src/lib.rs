#![doc = include_str!("../README.md")]
//!
//! # Parts
//!
//! - [`Workers`]: the workers of one agent. No worker outlives the agent: each leads a session of its own and dies with
//!   the agent (`start`). Processes that a worker leaves behind become children of the agent, which ends
//!   them (`orphans`); if the agent is killed, its reaper ends them (`reaper`, `reaper_main`).
//! - [`Template`]: a program that has started once, and copies itself for each worker.
//! - [`Group`]: one program with its children, which is awaited and ended as a whole.
//! - [`Process`], [`Deaths`]: one child that is signalled by its descriptor, and the deaths of many in the kernel's
//!   order.
//! - [`proc`], [`Standstill`]: the only readers of `/proc/PID`.
//! - [`ControlGroup`]: the control groups of this process.
//! - [`Listener`]: listening sockets, and whose they are.
//! - [`Stacks`]: the stacks of another process's threads.
//! - [`find_program`]: explains why a program cannot be run.
//! - [`end_of_file`]: the end of what a process printed.
//! - [`Exit`], [`signal_name`]: how a process ended, as text.
//! - [`Signals`]: the signals that ask this process itself to end.

mod agent_id;
mod control_group;
mod deaths;
mod descriptors;
mod end_of_file;
mod exit;
mod group;
mod kill;
mod listener;
mod open_files;
mod orphans;
pub mod proc;
mod process;
mod program;
mod reaper;
mod reaper_main;
mod receivers;
mod signals;
mod spec;
mod stacks;
mod standstill;
mod start;
mod template;
mod workers;

pub use agent_id::AGENT;
pub use control_group::ControlGroup;
pub use deaths::Deaths;
pub use end_of_file::end_of_file;
pub use exit::{Exit, known_signal_name, signal_name, signal_number};
pub use group::{Group, Outcome};
pub use kill::{KillOnDrop, kill_until_gone, reap_orphans};
pub use listener::{Listener, open_sockets};
pub use open_files::{TooFewFiles, raise_open_files};
pub use orphans::{Orphan, Swept};
pub use process::Process;
pub use program::{ProgramError, find_program};
pub use reaper::internal_main;
pub use rustix::process::Signal;
pub use signals::{Signals, not_ignored};
pub use spec::{Sink, Spec, Stdin};
pub use stacks::{Stacks, StacksError};
pub use standstill::Standstill;
pub use start::{die_with_parent, dying_with_parent, words_dying_with_parent};
pub use template::{Forking, Template, serve};
pub use workers::{Died, Left, Sweep, Workers};
