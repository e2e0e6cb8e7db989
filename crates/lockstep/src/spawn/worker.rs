//! The worker's side of a call: take the arguments, work, leave a record, exit.

use std::fs;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, anyhow};
use serde::de::DeserializeOwned;

use super::handshake::Handshake;
use crate::LaunchEnv;
use crate::env::ERROR_FILE;
use crate::error_file;

/// The exit code of a Rust process whose main thread panicked.
const PANICKED: i32 = 101;

static RUNNING: AtomicBool = AtomicBool::new(false);

/// Whether this process is a worker that has reached its call.
pub(super) fn is_running() -> bool {
    RUNNING.load(Ordering::SeqCst)
}

/// Runs the worker and ends the process: 0, or 1 with the error recorded, or 101 with the panic recorded.
pub(super) fn run<A, W>(handshake: Handshake, worker: W) -> !
where
    A: DeserializeOwned,
    W: FnOnce(&LaunchEnv, A) -> anyhow::Result<()>,
{
    RUNNING.store(true, Ordering::SeqCst);
    mark(&handshake.progress);
    // Unwind safety: after a panic nothing of the worker is looked at again, the process ends.
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

/// Ends a process that came to another call than its parent's: to the call at `at`, number `ordinal`.
pub(super) fn refuse(handshake: Handshake, at: &str, ordinal: usize) -> ! {
    let code = record(&anyhow!(
        "this process came to the call of spawn at {at} (number {ordinal}), its parent is at {} (number {}): \
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
        error_file::record_panics(path, true);
    }
    let args = fs::File::open(&handshake.args).context("cannot open the arguments of the worker")?;
    let args = serde_json::from_reader(io::BufReader::new(args))
        .context("cannot read the worker's arguments back from JSON; a float that is not finite does not travel")?;
    worker(&env, args)
}

/// Records `error` for the parent; on stderr, should that fail.
fn record(error: &anyhow::Error) -> i32 {
    let path = std::env::var_os(ERROR_FILE).unwrap_or_default();
    if let Err(failure) = error_file::record(Path::new(&path), error) {
        eprintln!("lockstep: {error:#} (not recorded: {failure})");
    }
    1
}

/// Adds a byte to the file that tells the parent how far this process came.
fn mark(progress: &Path) {
    let marked = fs::OpenOptions::new().append(true).open(progress).and_then(|mut file| file.write_all(b"."));
    if let Err(error) = marked {
        eprintln!("lockstep: cannot tell the parent of progress: {error}");
    }
}
