//! The handshake: how a process learns that it was spawned, by which parent and for which call, and how it dies with
//! that parent.
//!
//! [`call`](super::call) decides what to do with it.

use std::ffi::OsString;
use std::path::PathBuf;

use lockstep_process::die_with_parent;
use rustix::process::{Pid, getppid, test_kill_process};
use serde::{Deserialize, Serialize};

use super::SpawnError;
use crate::env::{self, LAUNCHER_VARIABLES};
use lockstep_contract::scheduler::{Task, TaskError};

/// The only variable of our own in a worker's environment: a [`Handshake`] as JSON.
pub(crate) const HANDSHAKE: &str = "LOCKSTEP_SPAWN";

/// What the parent passes to a worker process in addition to torchrun's variables.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Handshake {
    /// The parent's process id, to detect its death.
    pub(super) parent: i32,
    /// Number of the call in its process, from 0.
    pub(super) call: usize,
    /// The call's `file:line:column`.
    pub(super) at: String,
    /// The calls before it, in order.
    pub(super) earlier: Vec<Past>,
    /// The file with the worker's arguments as JSON.
    pub(super) args: PathBuf,
    /// A file that gets one byte when the worker reaches the call, and another when its function has returned.
    pub(super) progress: PathBuf,
}

/// A finished call of the parent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Past {
    pub(super) at: String,
    pub(super) ok: bool,
}

/// How this process was started.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// By a person, a shell, a launcher, or by a worker as a separate program.
    Fresh,
    /// By a call of spawn.
    Spawned(Handshake),
    /// By a call of spawn whose process has ended.
    Orphaned,
}

impl Place {
    /// Reads the handshake, if there is one, and makes this process die with its parent.
    ///
    /// An orphan exits here with code 1, because no process is left to receive an error.
    pub(super) fn of_this_process() -> Result<Self, SpawnError> {
        let Some(handshake) = std::env::var_os(HANDSHAKE) else { return Ok(Place::Fresh) };
        let handshake = parse(&handshake)?;
        let alive = |pid: i32| Pid::from_raw(pid).is_some_and(|pid| test_kill_process(pid).is_ok());
        if parent_is(handshake.parent) {
            // The parent may have ended meanwhile, so it is checked again after the signal is requested.
            die_with_parent(handshake.parent).map_err(SpawnError::Watch)?;
        }
        let place = place(handshake, parent_is, alive);
        if place == Place::Orphaned {
            eprintln!("lockstep: the process that spawned this one has ended; stopping");
            std::process::exit(1);
        }
        Ok(place)
    }
}

/// Makes this process die with its parent if it was spawned. Call it first in `main`, so that even the code before the
/// call of spawn does not outlive the parent. The call reports a handshake that cannot be read.
pub(crate) fn watch_parent() {
    let _ = Place::of_this_process();
}

/// Refuses to spawn if a launcher, MPI's launcher or srun has already started the processes of this job.
pub(super) fn refuse_launcher(lookup: impl Fn(&str) -> Option<OsString>) -> Result<(), SpawnError> {
    let lookup = |name: &str| lookup(name).filter(|value| !value.is_empty());
    let one_of_many = match env::read(&lookup, Task::find) {
        Ok(Some(task)) if task.size.value > 1 => Some(task.size.to_string()),
        Err(TaskError::Uncounted { rank }) => Some(rank),
        _ => None,
    };
    if lookup(HANDSHAKE).is_some() {
        return Err(SpawnError::Nested);
    }
    let value = |name: &str| lookup(name).map(|value| format!("{name}={}", value.to_string_lossy()));
    let found: Vec<_> = LAUNCHER_VARIABLES.into_iter().filter_map(value).chain(one_of_many).collect();
    if found.is_empty() { Ok(()) } else { Err(SpawnError::UnderLauncher { found }) }
}

fn parse(handshake: &OsString) -> Result<Handshake, SpawnError> {
    let text = handshake.to_string_lossy();
    serde_json::from_str(&text).map_err(|source| SpawnError::Handshake { value: text.into_owned(), source })
}

fn place(handshake: Handshake, parent_is: impl Fn(i32) -> bool, alive: impl Fn(i32) -> bool) -> Place {
    if parent_is(handshake.parent) {
        Place::Spawned(handshake)
    } else if alive(handshake.parent) {
        Place::Fresh
    } else {
        Place::Orphaned
    }
}

fn parent_is(pid: i32) -> bool {
    Pid::as_raw(getppid()) == pid
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handshake() -> Handshake {
        Handshake {
            parent: 7,
            call: 1,
            at: "src/main.rs:3:5".into(),
            earlier: vec![Past { at: "src/main.rs:2:5".into(), ok: false }],
            args: "/proc/self/fd/3".into(),
            progress: "/proc/self/fd/4".into(),
        }
    }

    #[test]
    fn distinguishes_a_worker_from_a_program_that_it_started_and_from_an_orphan() {
        assert_eq!(place(handshake(), |pid| pid == 7, |_| true), Place::Spawned(handshake()));
        assert_eq!(place(handshake(), |_| false, |pid| pid == 7), Place::Fresh);
        assert_eq!(place(handshake(), |_| false, |_| false), Place::Orphaned);
    }

    #[test]
    fn reads_back_its_own_handshake_and_rejects_other_text() {
        let text = OsString::from(serde_json::to_string(&handshake()).unwrap());
        assert_eq!(parse(&text).unwrap(), handshake());
        assert!(matches!(parse(&"yes".into()), Err(SpawnError::Handshake { .. })));
    }

    #[test]
    fn refuses_to_run_under_a_launcher_and_names_its_variables() {
        let under = |name: &str| (name == "RANK" || name == "WORLD_SIZE").then(|| "2".into());
        let error = refuse_launcher(under).unwrap_err().to_string();
        assert!(error.contains("RANK=2, WORLD_SIZE=2"), "{error}");
        assert!(error.contains("start it plainly"), "{error}");
        assert!(refuse_launcher(|_| None).is_ok());
    }

    #[test]
    fn refuses_to_run_as_one_of_several_processes_of_mpi() {
        let hydra = |size: &'static str| {
            move |name: &str| match name {
                "PMI_SIZE" | "MPI_LOCALNRANKS" => Some(size.into()),
                "PMI_RANK" | "MPI_LOCALRANKID" => Some("0".into()),
                _ => None,
            }
        };
        let error = refuse_launcher(hydra("2")).unwrap_err().to_string();
        assert!(error.contains("cannot spawn under a launcher (PMI_SIZE=2)"), "{error}");
        assert!(refuse_launcher(hydra("1")).is_ok());
    }

    #[test]
    fn refuses_to_run_in_a_program_that_a_worker_started() {
        let inherited = |name: &str| (name == HANDSHAKE || name == "RANK").then(|| "2".into());
        assert!(matches!(refuse_launcher(inherited), Err(SpawnError::Nested)));
    }
}
