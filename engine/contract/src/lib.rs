#![doc = include_str!("../README.md")]
//!
//! # Modules
//!
//! - [`background`]: threads of a rank that run whatever it does.
//! - [`error_file`]: the file that a failing worker writes for the process that started it.
//! - [`desync_report`]: where the ranks are, after a failure or in a hang.
//! - [`events`]: what each rank and each agent did.
//! - [`exit`]: the exit codes of a launcher and of a training program.
//! - [`recording`]: what each rank called in its groups, and when.
//! - [`CLEARED_VARIABLES`]: environment variables that other launchers may have set.
//! - [`rules`]: lists of things that can be wrong, for a failed job, its nodes and its scripts.
//! - [`scheduler`]: what Slurm, PBS and MPI's launchers say about a job.
//! - [`snapshot_request`]: the signals that ask for a snapshot, and the exit code of a program that has saved one and ended.
//! - [`fault`]: faults that a worker injects into itself at an exact point, on request.
//! - [`foreign`]: text that others wrote, within lines of our own; [`pickle`]: Python's pickles, as plain data.
//!
//! This is a separate crate, without libtorch, because the runtime and the launcher share these formats and nothing
//! else.

pub mod desync_report;
pub mod error_file;
pub mod events;
pub mod exit;
pub mod fault;
pub mod foreign;
pub mod panic_place;
pub mod pickle;
pub mod recording;
pub mod rules;
pub mod scheduler;

use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;
use std::process::Command;

use fault::FAULTS;
use snapshot_request::{LAUNCHER, SNAPSHOT_ON};

/// 1: ranks use deterministic kernels only, so that a run can be compared bit by bit on a GPU, too. An empty value or 0: any.
pub const DETERMINISTIC: &str = "LOCKSTEP_DETERMINISTIC";
/// The variable that cuBLAS needs for deterministic kernels, and the value that takes the most memory (24 MiB).
pub const CUBLAS_WORKSPACE: (&str, &str) = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8");

/// Names the backend for collectives of tensors in host memory: one of [`BACKENDS`]. An empty value counts as none.
pub const BACKEND: &str = "LOCKSTEP_BACKEND";
/// Shared memory if possible and Gloo otherwise; Gloo; shared memory.
pub const BACKENDS: [&str; 3] = ["auto", "gloo", "shm"];

/// Replaces the seed of training tests, and of the inputs with which tests grade the course's answers.
pub const TEST_SEED: &str = "LOCKSTEP_TEST_SEED";

/// Variables that a launcher, or the developer's own shell, may have set.
pub const CLEARED_VARIABLES: [&str; 24] = [
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_ERROR_FILE",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_USE_AGENT_STORE",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_RANK",
    "PMI_SIZE",
    "SLURM_STEP_ID",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "TORCH_DISTRIBUTED_DEBUG",
    "RUST_BACKTRACE",
    "LOCKSTEP_EVENTS",
    "LOCKSTEP_RECORD",
    SNAPSHOT_ON,
    LAUNCHER,
    FAULTS,
];

/// How wide lines for people are, in columns: as the terminal that shows them, within limits; for a file or a pipe as COLUMNS says, which
/// clap heeds in the same way, else `plain`.
pub fn columns(terminal: Option<usize>, plain: usize, (least, most): (usize, usize)) -> usize {
    columns_of(terminal, std::env::var("COLUMNS").ok().as_deref(), plain, (least, most))
}

fn columns_of(terminal: Option<usize>, asked: Option<&str>, plain: usize, (least, most): (usize, usize)) -> usize {
    // mpirun's terminals report no size.
    let terminal = terminal.filter(|width| *width > 0).map(|width| width.clamp(least, most));
    let asked = || asked?.trim().parse().ok().filter(|width| *width > 0).map(|width: usize| width.clamp(40, 1000));
    terminal.or_else(asked).unwrap_or(plain)
}

/// Prints a line on stderr in one write: what threads and processes write there at the same time does not come into it. The reader may be
/// gone, which is no error.
pub fn warn(line: &dyn Display) {
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Stdout of a command whose reader may leave early, such as `head`: what is printed after that is lost, and nothing else.
pub struct Stdout;

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        without_reader(io::stdout().write(bytes), bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        without_reader(io::stdout().flush(), ())
    }
}

/// `done` in place of the error that no process reads.
fn without_reader<T>(result: io::Result<T>, done: T) -> io::Result<T> {
    result.or_else(|error| if error.kind() == io::ErrorKind::BrokenPipe { Ok(done) } else { Err(error) })
}

/// A number of things in words: `1 rank`, `8 ranks`, `2 batches`, `0 classes`.
pub fn counted<N: Display + PartialEq + From<u8>>(number: N, what: &str) -> String {
    let plural = if what.ends_with("ch") || what.ends_with("ss") { "es" } else { "s" };
    format!("{number} {what}{}", if number == N::from(1) { "" } else { plural })
}

/// Returns true for the root of the course's checkout: graders ask it, and the command before its graders are built.
pub fn is_checkout(folder: &Path) -> bool {
    folder.join("Cargo.lock").is_file() && folder.join("labs").is_dir()
}

/// Removes these variables from the environment of `command`.
pub fn clear_launcher(command: &mut Command) -> &mut Command {
    CLEARED_VARIABLES.iter().fold(command, |command, name| command.env_remove(name))
}

/// Names of threads that run now and then, whatever their rank does. A rank whose other threads sleep does nothing.
pub mod background {
    /// Answers desync reports for the rank, and publishes how fast it is.
    pub const DESYNC_REPORT: &str = "desync report";

    /// Waits for messages of Gloo's TCP connections. The shim names it (`gloo_options` in group.cpp).
    pub const GLOO: &str = "gloo transport";

    /// Checks whether an answer of an exercise sleeps.
    pub const SLEEP_WATCH: &str = "sleep watch";

    /// The names of all these threads.
    pub const THREADS: [&str; 3] = [DESYNC_REPORT, GLOO, SLEEP_WATCH];
}

/// Requests for a snapshot, which reach a training program as signals.
///
/// A scheduler or a person sends them to `lockstep run`, which passes them on to ranks that handle them, or to the ranks themselves.
///
/// SIGTERM is ambiguous: a scheduler sends it at the time limit, to all processes of a job, and a launcher ends the survivors of a
/// failure with it. The sender distinguishes the two: a launcher names the signals that ask for a snapshot in
/// [`SNAPSHOT_ON`] and itself in [`LAUNCHER`]. Such a signal from the
/// launcher orders the end; from anyone else it asks for a snapshot and the end.
pub mod snapshot_request {
    use std::time::Duration;

    /// Save a snapshot after this step, and go on: SIGUSR1 (signal(7)).
    pub const SAVE: i32 = 10;

    /// Save a snapshot after this step, then exit with [`SAVED`]: SIGUSR2 (signal(7)).
    pub const SAVE_AND_END: i32 = 12;

    /// The exit code of a program that has saved a snapshot and ended as a signal asked: start it again to go on. It is `EX_TEMPFAIL`, "the
    /// user is invited to retry" (sysexits.h).
    pub const SAVED: u8 = 75;

    /// A scheduler sends SIGTERM several times: Slurm 22.05 to all processes of a step and of the job, within a millisecond; timeout(1) to
    /// its child and to its group. A signal that comes within this time after the first is a repetition.
    pub const REPETITION: Duration = Duration::from_secs(2);

    /// The variable with the names of further signals that ask for a snapshot, as [`SAVE_AND_END`] does, joined by commas: `SIGTERM`. A program that
    /// does not read it keeps their default action.
    pub const SNAPSHOT_ON: &str = "LOCKSTEP_SNAPSHOT_ON";

    /// The variable with the process id of the launcher, whose own signals do not ask for a snapshot; set together with [`SNAPSHOT_ON`].
    pub const LAUNCHER: &str = "LOCKSTEP_LAUNCHER";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clears_what_a_launcher_has_set_and_nothing_else() {
        let mut command = Command::new("true");
        clear_launcher(command.envs([("RANK", "1"), ("MASTER_PORT", "2"), ("HOME", "/")]));
        let set: Vec<_> = command.get_envs().filter(|(_, value)| value.is_some()).map(|(name, _)| name).collect();
        assert_eq!(set, ["HOME"]);
    }

    #[test]
    fn a_terminal_has_its_width_and_anything_else_that_of_columns() {
        let wide = |terminal, asked| columns_of(terminal, asked, 88, (60, 100));
        assert_eq!([Some(0), None].map(|terminal| wide(terminal, None)), [88, 88]);
        assert_eq!([20, 72, 300].map(|terminal| wide(Some(terminal), Some("50"))), [60, 72, 100]);
        assert_eq!(["50", "200", "1", "99999"].map(|asked| wide(None, Some(asked))), [50, 200, 40, 1000]);
        assert_eq!(["", "0", "-1", "many"].map(|asked| wide(None, Some(asked))), [88; 4]);
    }
}
