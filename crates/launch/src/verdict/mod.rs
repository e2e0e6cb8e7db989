//! Who is at fault for a failure, and why: one sentence with the rank, its host, the cause, the evidence, and what to do.
//!
//! - [`gather`]: collects the [`Evidence`] where it exists, after a failure only.
//! - [`judge`]: a pure function from the workers' ends and the evidence to a [`Verdict`].
//! - [`rules`]: the known causes, one file for each family.
//! - [`flight_recorder`]: reads PyTorch's recordings of the ranks' calls.
//! - [`launcher`]: failures of the launcher itself, before a worker was started or between two attempts.
//! - [`senders`]: looks for the sender of a signal.
//! - [`time_out`]: the limit of a worker's timeout(1).
//! - [`python`], [`native`]: read errors in a worker's output; [`case`] is one worker's end as the rules see it.
//!
//! The worker that ended first is often not at fault: it lost the connection to another rank, or waited for one until a deadline. Then
//! the cause is looked for in the other workers. Without evidence the verdict says "unknown".

mod case;
mod evidence;
mod flight_recorder;
mod gather;
mod launcher;
mod native;
mod python;
mod rules;
mod senders;
#[cfg(test)]
mod tests;
mod time_out;
mod verdicts;

pub use evidence::{Elsewhere, Evidence, FileSystem, MemoryKills, Standing};
pub use flight_recorder::Recordings;
pub use gather::{AtStart, gather, standing};
pub use launcher::{LaunchFailure, why_launcher_failed};
pub use rules::{Class, FAMILIES, Rule};
pub use verdicts::{Verdict, has_waited, judge};
