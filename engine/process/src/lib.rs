#![doc = include_str!("../README.md")]
//!
//! # Parts
//!
//! - [`Workers`]: the workers of one agent. No worker outlives the agent: each leads a session of its own and dies with
//!   the agent (`start`). Processes that a worker leaves behind become children of the agent, which ends them (`orphans`);
//!   if the agent is killed, its reaper ends them (`reaper`). Who gets a signal to a worker: `receivers`.
//! - [`Template`]: a program that has started once, and copies itself for each worker.
//! - [`Group`]: one program with its children, which is awaited and ended as a whole; [`Job`]: several, each with its output in a [`Log`].
//! - [`Process`], [`Deaths`]: one child that is signalled by its descriptor, and the deaths of many in the kernel's
//!   order.
//! - [`proc`]: the only reader of `/proc/PID`, and of control groups.
//! - [`Stacks`], [`NoProgress`]: the stacks of another process's threads, and why it makes no progress.
//! - [`watchdog`]: deadlines that do not depend on the machine's speed or load.
//! - [`find_program`]: explains why a program cannot be run.
//! - [`Listener`], [`end_of_file`], [`raise_open_files`]: sockets and files.
//! - [`check_room`], [`check_calls`]: whether the system has room for more processes and threads, and allows what workers need.
//! - [`Exit`], [`signal_name`], [`Signals`]: how a process ended, as text, and the signals that ask this process itself to end.

mod files;
mod job;
mod orphans;
pub mod proc;
mod process;
mod program;
mod reaper;
mod receivers;
mod room;
mod signals;
mod stacks;
mod start;
mod template;
pub mod watchdog;
mod workers;

pub use files::{Listener, TooFewFiles, end_of_file, free_port, open_sockets, raise_open_files};
pub use job::{Job, Log, last_lines};
pub use orphans::{AGENT, Orphan, Swept};
pub use proc::ControlGroup;
pub use process::{Deaths, Group, KILL_LIMIT, KillOnDrop, Outcome, Process, kill_until_gone, reap_orphans};
pub use program::{ClosedFolder, ProgramError, Sink, Spec, Stdin, find_program, is_noexec, processor_of, refusal};
pub use reaper::internal_main;
pub use receivers::Left;
pub use room::{NoRoom, RefusedCall, check_calls, check_room, pids_limit};
pub use rustix::process::Signal;
pub use signals::{Exit, Signals, known_signal_name, not_ignored, signal_name, signal_number};
pub use stacks::{NoProgress, Stacks, StacksError};
pub use start::{die_with_parent, dying_with_parent, this_program, unblock_signals, words_dying_with_parent};
pub use template::{Forking, Template, serve};
pub use workers::{Died, Sweep, Workers};
