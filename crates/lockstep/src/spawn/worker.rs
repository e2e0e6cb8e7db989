//! The worker's side of a call, and what both sides agree on: the handshake, by which a process learns that it was spawned, by which
//! parent and for which call, and the count of calls, by which it finds that call.
//!
//! A worker reads its arguments, runs, records its result and exits. It dies with its parent. The count is state of the process and is
//! kept only here.

use std::ffi::OsString;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{fs, io};

use anyhow::{Context, anyhow};
use lockstep_contract::scheduler::{Task, TaskError};
use lockstep_process::die_with_parent;
use rustix::process::{Pid, getppid, test_kill_process};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::SpawnError;
use crate::env::{ERROR_FILE, HANDSHAKE, LAUNCHER_VARIABLES};
use crate::{LaunchEnv, env, error_file};

/// The exit code of a Rust process whose main thread has panicked.
const PANICKED: i32 = 101;

static RUNNING: AtomicBool = AtomicBool::new(false);

/// Returns true if this process is a worker that has reached its call.
fn is_running() -> bool {
    RUNNING.load(Ordering::SeqCst)
}

/// Runs the worker and ends the process with 0, 1 (error recorded) or 101 (panic recorded).
pub(super) fn run<A, W>(handshake: Handshake, worker: W) -> !
where
    A: DeserializeOwned,
    W: FnOnce(&LaunchEnv, A) -> anyhow::Result<()>,
{
    RUNNING.store(true, Ordering::SeqCst);
    mark(&handshake.progress);
    // Unwind safety: after a panic the process ends without using the worker's values again.
    let code = match catch_unwind(AssertUnwindSafe(|| work(&handshake, worker))) {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => record(&error),
        Err(_) => PANICKED,
    };
    if code == 0 {
        mark(&handshake.progress);
    }
    std::process::exit(code)
}

/// Ends a process that reached another call than its parent's: the call at `at`, number `ordinal`.
pub(super) fn refuse(handshake: Handshake, at: &str, ordinal: usize) -> ! {
    let code = record(&anyhow!(
        "this process reached the call of spawn at {at} (number {ordinal}), its parent is at {} (number {}): \
         the code before a call of spawn must take the same path in every process",
        handshake.at,
        handshake.call
    ));
    std::process::exit(code)
}

fn work<A, W>(handshake: &Handshake, worker: W) -> anyhow::Result<()>
where
    A: DeserializeOwned,
    W: FnOnce(&LaunchEnv, A) -> anyhow::Result<()>,
{
    let env = LaunchEnv::from_env()?;
    if let Some(path) = env.error_file.clone() {
        error_file::report_panics(Some(path), true);
    }
    let args = fs::File::open(&handshake.args).context("cannot open the arguments of the worker")?;
    args.lock_shared().context("cannot wait until the parent watches this process")?;
    let args = serde_json::from_reader(io::BufReader::new(args)).context(
        "cannot read the worker's arguments back from JSON; JSON has no form for a float that is not finite",
    )?;
    worker(&env, args)
}

/// Records `error` for the parent, or prints it to stderr if that fails.
fn record(error: &anyhow::Error) -> i32 {
    let path = std::env::var_os(ERROR_FILE).unwrap_or_default();
    if let Err(failure) = error_file::record(Path::new(&path), error) {
        eprintln!("lockstep: {error:#} (not recorded: {failure})");
    }
    1
}

/// Adds a byte to the file that shows the parent this process's progress.
fn mark(progress: &Path) {
    let marked = fs::OpenOptions::new().append(true).open(progress).and_then(|mut file| file.write_all(b"."));
    if let Err(error) = marked {
        eprintln!("lockstep: cannot report the progress to the parent: {error}");
    }
}

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
pub(super) enum Origin {
    /// By a person, a shell, a launcher, or by a worker as a separate program.
    Fresh,
    /// By a call of spawn.
    Spawned(Handshake),
    /// By a call of spawn whose process has ended.
    Orphaned,
}

impl Origin {
    /// Reads the handshake, if there is one, and makes this process die with its parent.
    ///
    /// An orphan exits here with code 1, because no process is left to receive an error.
    pub(super) fn of_this_process() -> Result<Self, SpawnError> {
        let Some(handshake) = std::env::var_os(HANDSHAKE) else { return Ok(Origin::Fresh) };
        let handshake = parse(&handshake)?;
        let alive = |pid: i32| Pid::from_raw(pid).is_some_and(|pid| test_kill_process(pid).is_ok());
        if parent_is(handshake.parent) {
            // The parent may have ended meanwhile, so it is checked again after the signal is requested.
            die_with_parent(handshake.parent).map_err(SpawnError::Watch)?;
        }
        let origin = origin(handshake, parent_is, alive);
        if origin == Origin::Orphaned {
            eprintln!("lockstep: the process that spawned this one has ended; stopping");
            std::process::exit(1);
        }
        Ok(origin)
    }
}

/// Makes this process die with its parent if it was spawned. Call it first in `main`, so that even the code before the
/// call of spawn does not outlive the parent. The call reports a handshake that cannot be read.
pub(crate) fn watch_parent() {
    let _ = Origin::of_this_process();
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

fn origin(handshake: Handshake, parent_is: impl Fn(i32) -> bool, alive: impl Fn(i32) -> bool) -> Origin {
    if parent_is(handshake.parent) {
        Origin::Spawned(handshake)
    } else if alive(handshake.parent) {
        Origin::Fresh
    } else {
        Origin::Orphaned
    }
}

fn parent_is(pid: i32) -> bool {
    Pid::as_raw(getppid()) == pid
}

static CALLS: Mutex<Calls> = Mutex::new(Calls { past: Vec::new(), running: false });

struct Calls {
    past: Vec<Past>,
    running: bool,
}

/// A running call; the process has at most one.
pub(super) struct Call {
    pub(super) ordinal: usize,
    pub(super) at: String,
    pub(super) earlier: Vec<Past>,
    ok: bool,
}

/// What the process does at a call.
pub(super) enum Role {
    /// It starts the workers.
    Parent,
    /// It is a worker.
    Worker(Handshake),
    /// It continues to a later call and returns here what the parent's call returned.
    PassedOver(Result<(), SpawnError>),
    /// It fails: the parent did not make this call.
    Elsewhere(Handshake),
}

/// Begins the call at `at` and gives it the next number.
///
/// Errors: [`SpawnError::Concurrent`] while another call runs: the order of two concurrent calls would differ in the workers. A worker is
/// within its call until it ends, so there the error is [`SpawnError::Nested`].
pub(super) fn begin(at: String) -> Result<Call, SpawnError> {
    let mut calls = lock();
    if calls.running {
        return Err(if is_running() { SpawnError::Nested } else { SpawnError::Concurrent });
    }
    calls.running = true;
    Ok(Call { ordinal: calls.past.len(), at, earlier: calls.past.clone(), ok: false })
}

impl Call {
    pub(super) fn role(&mut self, origin: Origin) -> Role {
        let Origin::Spawned(handshake) = origin else { return Role::Parent };
        let past = handshake.earlier.get(self.ordinal);
        if let Some(past) = past.filter(|past| past.at == self.at) {
            self.ok = past.ok;
            return Role::PassedOver(if past.ok { Ok(()) } else { Err(SpawnError::Earlier { at: self.at.clone() }) });
        }
        if self.ordinal == handshake.call && self.at == handshake.at {
            Role::Worker(handshake)
        } else {
            Role::Elsewhere(handshake)
        }
    }

    /// Runs the call's work and records whether it succeeded, for the workers of later calls.
    pub(super) fn finish(mut self, work: impl FnOnce(&Call) -> Result<(), SpawnError>) -> Result<(), SpawnError> {
        let result = work(&self);
        self.ok = result.is_ok();
        result
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut calls = lock();
        calls.running = false;
        calls.past.push(Past { at: std::mem::take(&mut self.at), ok: self.ok });
    }
}

fn lock() -> MutexGuard<'static, Calls> {
    CALLS.lock().unwrap_or_else(PoisonError::into_inner)
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
        assert_eq!(origin(handshake(), |pid| pid == 7, |_| true), Origin::Spawned(handshake()));
        assert_eq!(origin(handshake(), |_| false, |pid| pid == 7), Origin::Fresh);
        assert_eq!(origin(handshake(), |_| false, |_| false), Origin::Orphaned);
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

    fn call(ordinal: usize, at: &str) -> std::mem::ManuallyDrop<Call> {
        // Not dropped, because these calls are not in the process's count.
        std::mem::ManuallyDrop::new(Call { ordinal, at: at.into(), earlier: Vec::new(), ok: false })
    }

    fn spawned() -> Origin {
        let past = |at: &str, ok| Past { at: at.into(), ok };
        Origin::Spawned(Handshake {
            parent: 1,
            call: 2,
            at: "c".into(),
            earlier: vec![past("a", true), past("b", false)],
            args: "args".into(),
            progress: "progress".into(),
        })
    }

    #[test]
    fn starts_workers_where_the_process_was_not_spawned() {
        assert!(matches!(call(0, "a").role(Origin::Fresh), Role::Parent));
    }

    #[test]
    fn passes_over_earlier_calls_with_the_parents_result() {
        assert!(matches!(call(0, "a").role(spawned()), Role::PassedOver(Ok(()))));
        assert!(matches!(call(1, "b").role(spawned()), Role::PassedOver(Err(SpawnError::Earlier { .. }))));
    }

    #[test]
    fn works_only_at_the_parents_call() {
        assert!(matches!(call(2, "c").role(spawned()), Role::Worker(_)));
        for (ordinal, at) in [(2, "d"), (0, "b"), (3, "c")] {
            assert!(matches!(call(ordinal, at).role(spawned()), Role::Elsewhere(_)), "{ordinal} at {at}");
        }
    }
}
