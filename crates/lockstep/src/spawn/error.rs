//! Errors of a spawn call, in torch's wording.
//!
//! [`state_machine`](super::state_machine) decides which worker caused the failure.

use std::fmt;
use std::io;
use std::time::Duration;

use super::MOST_PROCESSES;
use crate::Rank;
use crate::env::EnvError;

/// Why [`Spawn::run`](super::Spawn::run) failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpawnError {
    /// A worker failed, and the others were stopped.
    #[error("{0}")]
    Workers(Box<Report>),
    /// The workers had not ended when the caller's timeout expired.
    #[error(
        "the workers had not ended after {after:.1?}, the timeout of this call{}{}",
        also(also_failed),
        stops(stopped)
    )]
    TimedOut {
        after: Duration,
        /// Workers that failed on their own while they were being stopped.
        also_failed: Vec<Failure>,
        stopped: Vec<Stopped>,
    },
    /// The number of processes is zero.
    #[error("cannot spawn 0 processes: ask for 1 or more")]
    NoProcesses,
    /// The number of processes is larger than any one node runs.
    #[error("cannot spawn {nprocs} processes: at most {MOST_PROCESSES} are allowed on one node; is the number right?")]
    TooManyProcesses { nprocs: usize },
    /// A launcher has started this program once per rank.
    #[error(
        "cannot spawn under a launcher ({}): it has started this program once a rank, and each of those would start \
         all ranks again and fight over one port; start it plainly, or read the ranks with `LaunchEnv::from_env` \
         and do not spawn",
        found.join(", ")
    )]
    UnderLauncher {
        /// The launcher's variables that are set, as `NAME=value`.
        found: Vec<String>,
    },
    /// The call was made in a worker, or in a program that a worker started.
    #[error("cannot spawn inside a worker of another spawn: start all processes from the first one")]
    Nested,
    /// Another call runs in this process.
    #[error("cannot spawn while another spawn runs in this process: make one call after the other")]
    Concurrent,
    /// In a worker of a later call: this call failed in the parent.
    #[error("the call of spawn at {at} failed in the parent process")]
    Earlier {
        /// The call's place in the source.
        at: String,
    },
    /// The worker's arguments cannot be written as JSON.
    #[error("cannot write the worker's arguments as JSON")]
    Args(#[source] serde_json::Error),
    /// The rendezvous store could not be opened.
    #[error("cannot open the rendezvous store of the workers: {0:#}")]
    Host(anyhow::Error),
    /// A process could not be started; those started before it were killed.
    #[error("cannot start process {rank} of {nprocs}")]
    Start { rank: Rank, nprocs: usize, source: io::Error },
    /// The system failed to wait for the workers or to signal them; they were killed.
    #[error("cannot watch the workers")]
    Watch(#[source] io::Error),
    /// A variable that only spawn sets has an invalid value.
    #[error("LOCKSTEP_SPAWN is {value:?}, which no spawn has written: unset it")]
    Handshake {
        value: String,
        /// What is wrong with the value.
        source: serde_json::Error,
    },
    /// The environment that the parent set was changed before the worker read it.
    #[error(transparent)]
    Env(#[from] EnvError),
}

/// A failed run: which worker failed, why, and what happened to the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The first failure.
    pub root: Failure,
    /// Others that failed on their own, in order of death; often because the first one was gone.
    pub also_failed: Vec<Failure>,
    /// Workers that had not failed and that spawn stopped.
    pub stopped: Vec<Stopped>,
    /// Other observations, such as a record that cannot be read.
    pub notes: Vec<String>,
}

/// How one worker failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// The worker returned an error.
    Raised {
        rank: Rank,
        /// The error's chain in one line.
        message: String,
        /// Its backtrace, with `RUST_BACKTRACE=1`.
        trace: Option<String>,
    },
    /// The worker panicked.
    Panicked {
        rank: Rank,
        message: String,
        /// `file:line:column`.
        location: Option<String>,
        /// Its backtrace, with `RUST_BACKTRACE=1`.
        trace: Option<String>,
    },
    /// The process exited and recorded nothing.
    Exited {
        rank: Rank,
        /// Its exit code; 0 only if the worker had not returned.
        code: i32,
        stage: Stage,
    },
    /// A signal that spawn did not send ended the process.
    Signalled {
        rank: Rank,
        /// The signal's number; [`Failure::signal_name`] has its name.
        signal: i32,
    },
    /// The process has ended and its status is not available.
    Lost { rank: Rank, reason: String },
}

/// The progress of a worker process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It ran, but never reached the call of spawn.
    Started,
    /// It reached the call and began its work.
    Reached,
    /// Its worker returned `Ok`.
    Returned,
}

/// A worker that had not failed and was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// The worker.
    pub rank: Rank,
    /// What ended it.
    pub by: StoppedBy,
}

/// What ended a worker that spawn stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoppedBy {
    /// SIGTERM.
    Sigterm,
    /// SIGKILL, because it was still alive after the grace period.
    Sigkill,
    /// Not even SIGKILL: it hangs in the kernel and may still exist.
    Nothing,
}

impl SpawnError {
    /// The first failure, if a worker failed.
    pub fn root(&self) -> Option<&Failure> {
        match self {
            SpawnError::Workers(report) => Some(&report.root),
            _ => None,
        }
    }

    /// Returns true if the call was invalid, as opposed to a failure during the call.
    pub fn is_usage(&self) -> bool {
        use SpawnError::{Concurrent, Nested, NoProcesses, TooManyProcesses, UnderLauncher};
        matches!(self, NoProcesses | TooManyProcesses { .. } | UnderLauncher { .. } | Nested | Concurrent)
    }
}

impl Failure {
    /// The rank of the worker.
    pub fn rank(&self) -> Rank {
        match *self {
            Failure::Raised { rank, .. }
            | Failure::Panicked { rank, .. }
            | Failure::Exited { rank, .. }
            | Failure::Signalled { rank, .. }
            | Failure::Lost { rank, .. } => rank,
        }
    }

    /// The name of the signal that ended the process, such as `SIGKILL`, if one did.
    pub fn signal_name(&self) -> Option<String> {
        match *self {
            Failure::Signalled { signal, .. } => Some(signal_name(signal)),
            _ => None,
        }
    }

    fn trace(&self) -> Option<&str> {
        match self {
            Failure::Raised { trace, .. } | Failure::Panicked { trace, .. } => trace.as_deref(),
            _ => None,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rank = self.rank();
        match self {
            Failure::Raised { message, .. } => {
                write!(f, "process {rank} terminated with the following error: {message}")
            }
            Failure::Panicked { message, location: Some(at), .. } => {
                write!(f, "process {rank} panicked at {at}: {message}")
            }
            Failure::Panicked { message, .. } => write!(f, "process {rank} panicked: {message}"),
            Failure::Exited { code: 0, stage: Stage::Started, .. } => write!(
                f,
                "process {rank} ended without reaching the call of spawn: the code before it must take the same path in \
                 every process"
            ),
            Failure::Exited { code: 0, .. } => write!(
                f,
                "process {rank} terminated with exit code 0 before its worker returned: let the worker return instead of \
                 exiting"
            ),
            Failure::Exited { code, stage: Stage::Started, .. } => {
                write!(f, "process {rank} terminated with exit code {code} before it reached the call of spawn")
            }
            Failure::Exited { code, .. } => write!(f, "process {rank} terminated with exit code {code}"),
            Failure::Signalled { signal, .. } => {
                write!(f, "process {rank} terminated with signal {}{}", signal_name(*signal), signal_hint(*signal))
            }
            Failure::Lost { reason, .. } => write!(f, "process {rank} is gone: {reason}"),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{}", self.root, also(&self.also_failed), stops(&self.stopped))?;
        self.notes.iter().try_for_each(|note| write!(f, "\nnote: {note}"))?;
        match self.root.trace() {
            Some(trace) => write!(f, "\ntrace of process {}:\n{}", self.root.rank(), trace.trim_end()),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stopped { rank, by } = self;
        match by {
            StoppedBy::Sigterm => write!(f, "process {rank} (SIGTERM)"),
            StoppedBy::Sigkill => write!(f, "process {rank} (SIGKILL, since it did not end after SIGTERM)"),
            StoppedBy::Nothing => write!(f, "process {rank} (still there after SIGKILL: it hangs in the kernel)"),
        }
    }
}

fn also(failures: &[Failure]) -> String {
    failures.iter().map(|failure| format!("\nalso failed: {failure}")).collect()
}

fn stops(stopped: &[Stopped]) -> String {
    if stopped.is_empty() {
        return String::new();
    }
    let each: Vec<_> = stopped.iter().map(Stopped::to_string).collect();
    format!("\nstopped because of it: {}", each.join(", "))
}

/// For a signal without a name, this is torch's text.
fn signal_name(signal: i32) -> String {
    lockstep_process::known_signal_name(signal).map_or_else(|| format!("<Unknown signal {signal}>"), str::to_owned)
}

fn signal_hint(signal: i32) -> &'static str {
    match signal {
        9 => " (not sent by spawn: perhaps the kernel was out of memory; see `dmesg`)",
        7 => " (perhaps /dev/shm is full; see `df /dev/shm`)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn describes_exit_codes_and_signals_as_torch_does() {
        let rank = Rank::new(1);
        let exited = Failure::Exited { rank, code: 3, stage: Stage::Reached };
        assert_eq!(exited.to_string(), "process 1 terminated with exit code 3");
        let killed = Failure::Signalled { rank, signal: 9 };
        assert!(killed.to_string().starts_with("process 1 terminated with signal SIGKILL"), "{killed}");
        assert_eq!(killed.signal_name().as_deref(), Some("SIGKILL"));
    }

    #[test]
    fn names_signals_as_signal_7_does() {
        for (number, name) in [(1, "SIGHUP"), (6, "SIGABRT"), (11, "SIGSEGV"), (15, "SIGTERM"), (31, "SIGSYS")] {
            assert_eq!(signal_name(number), name);
        }
        assert_eq!(signal_name(64), "<Unknown signal 64>");
        assert_eq!(signal_name(0), "<Unknown signal 0>");
    }

    #[test]
    fn lists_failed_and_stopped_workers_separately() {
        let raised = |rank, message: &str, trace: Option<&str>| Failure::Raised {
            rank: Rank::new(rank),
            message: message.into(),
            trace: trace.map(str::to_owned),
        };
        let report = Report {
            root: raised(1, "disk full", Some("0: main\n")),
            also_failed: vec![raised(0, "peer 1 is gone", None)],
            stopped: vec![
                Stopped { rank: Rank::new(2), by: StoppedBy::Sigterm },
                Stopped { rank: Rank::new(3), by: StoppedBy::Sigkill },
            ],
            notes: vec![],
        };
        assert_eq!(
            SpawnError::Workers(Box::new(report)).to_string(),
            "process 1 terminated with the following error: disk full\n\
             also failed: process 0 terminated with the following error: peer 1 is gone\n\
             stopped because of it: process 2 (SIGTERM), process 3 (SIGKILL, since it did not end after SIGTERM)\n\
             trace of process 1:\n0: main"
        );
    }
}
