//! Who is at fault for a failure, and why: one sentence with the rank, its host, the cause, the evidence, and what to do.
//!
//! - [`gather`](mod@gather): collects the [`Evidence`] where it exists, after a failure only; [`flight_recorder`] reads PyTorch's recordings
//!   of the ranks' calls.
//! - [`judge`](mod@judge): a pure function from the workers' ends and the evidence to a [`Verdict`]; also failures of the launcher itself,
//!   before a worker was started or between two attempts.
//! - [`rules`]: the known causes, in a file for each subject: [`communication`], [`machine`] (with GPUs), [`signals`] and [`start`].
//!   [`worker_end`] is one worker's end as the rules see it, with the error
//!   that [`output`] finds in what it printed.
//!
//! The worker that ended first is often not at fault: it lost the connection to another rank, or waited for one until a deadline. Then
//! the rules look for the cause in the other workers. Without evidence the verdict says "unknown".
//!
//! # The order of evidence
//!
//! Of one worker's end, a rule may look at the first of these that is there. What comes later never overrules it.
//!
//! 1. What the kernel says: a program that could not be started; a signal, with the OOM killer's counter, the kernel's log and the audit
//!    log. What a worker printed before a signal explains only SIGABRT, by which a program ends itself.
//! 2. The error file, if it is of this death: the worker ended as such an error ends it, and its output does not end with another error.
//! 3. An error that ended the program: it is the last thing in the output, but for noise of libraries on the way out, and the exit code
//!    fits: 1 for an exception of Python, 101 or SIGABRT for a panic, SIGABRT for an exception of C++.
//! 4. The message at the end of the output. An exception there that did not end the program is quoted, and explains nothing else, unless it
//!    says that another rank has gone.
//! 5. Nothing: "unknown". In the cases 4 and 5 the evidence has what the program printed before, such as a warning or an exception that it
//!    handled: "before it, the program printed …".
//!
//! A line about something that the program survived ("warning", "ignored", "retrying") is never a cause. Of an exception that was raised
//! while another was handled, both are named, the first one first; if rules know different causes for the two, neither of these is taken.
//! Of an exception group, all exceptions must have the same cause.

mod communication;
pub mod flight_recorder;
mod gather;
mod judge;
mod machine;
mod output;
mod rules;
mod signals;
mod start;
#[cfg(test)]
mod tests;
mod worker_end;

use std::path::PathBuf;
use std::time::SystemTime;

use lockstep_process::NoProgress;

pub use flight_recorder::Recordings;
pub use gather::{AtStart, gather, standing};
pub use judge::{LaunchFailure, Verdict, has_lost_a_peer, has_waited, judge, on_sleeper, why_launcher_failed};
pub use rules::{Causes, Class, Example, FAMILIES};

/// What was observed on this node, apart from the ends of the workers themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// This node's name.
    pub host: String,
    /// The command line of the workers.
    pub command: Vec<String>,
    /// How many nodes have ranks of the job.
    pub nodes: usize,
    /// The ranks of this node's workers.
    pub ranks: Vec<usize>,
    /// Ranks that had ended with exit code 0 before the first failure.
    pub returned: Vec<usize>,
    /// The workers that were alive at the first failure, and stood still in the kernel or because they were stopped.
    pub standing: Vec<Standing>,
    /// How many processes the kernel's OOM killer has ended in this job's cgroup.
    pub memory: Option<MemoryKills>,
    /// Lines of the kernel's log since the workers were started, as far as it is readable.
    pub kernel_log: Vec<String>,
    /// Who sent SIGKILL to the worker that got one, by the audit log.
    pub sender: Option<String>,
    /// Programs of this node that kill others when memory gets short, if a worker got SIGKILL.
    pub oom_daemons: Vec<String>,
    /// File systems that matter for the failure.
    pub file_systems: Vec<FileSystem>,
    /// The owner of the port that a worker could not have, as text.
    pub port_owner: Option<String>,
    /// When the scheduler ends the job.
    pub job_end: Option<SystemTime>,
    /// PyTorch's recordings of the ranks' calls, if a worker ended because of another.
    pub recordings: Recordings,
    /// The verdict of the node that ended the job, if that is another one.
    pub elsewhere: Option<Elsewhere>,
}

/// A worker that makes no progress.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the names of the fields explain them
pub struct Standing {
    pub rank: usize,
    pub pid: u32,
    pub at: NoProgress,
}

/// The counter `oom_kill` of a cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryKills {
    /// The file that has the counter.
    pub file: PathBuf,
    /// Its value when the workers were started.
    pub before: u64,
    /// Its value now.
    pub after: u64,
}

/// The state of a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSystem {
    /// A path in it.
    pub path: PathBuf,
    /// Bytes that a user can still write.
    pub free: u64,
    /// Its size in bytes.
    pub size: u64,
    /// Files that can still be made; `None` if there is no limit.
    pub free_files: Option<u64>,
    /// It is mounted read-only.
    pub read_only: bool,
}

/// What another node reported about the failure that ended the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elsewhere {
    /// The rank at fault.
    pub rank: usize,
    /// Its host.
    pub host: String,
    /// Its cause, in that node's words.
    pub message: String,
}

impl FileSystem {
    /// Nothing more can be written.
    pub(super) fn is_full(&self) -> bool {
        self.size > 0 && self.free == 0 || self.free_files == Some(0)
    }
}

impl std::fmt::Display for FileSystem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (unit, name) = if self.size < 10 << 20 { (1 << 10, "KiB") } else { (1 << 20, "MiB") };
        write!(f, "{} has {} of {} {name} free", self.path.display(), self.free / unit, self.size / unit)?;
        if self.free_files == Some(0) {
            f.write_str(" and no inode left")?;
        }
        if self.read_only { f.write_str(" and is mounted read-only") } else { Ok(()) }
    }
}
