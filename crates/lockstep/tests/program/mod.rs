//! Tests that start themselves as a program: `main` runs the case that a variable names, or else the tests.

#![allow(dead_code)] // each test program uses its part

use std::env;
use std::io::Read;
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use libtest_mimic::{Arguments, Trial};

const CASE: &str = "LOCKSTEP_TEST_CASE";

/// No wait of a test is longer than this; all end by an event long before.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// Runs the named case of `cases`, or the tests.
pub(crate) fn main<const N: usize>(cases: fn(&str) -> anyhow::Result<()>, tests: [(&str, fn()); N]) -> ExitCode {
    if let Ok(case) = env::var(CASE) {
        return lockstep::exit::main(|| cases(&case));
    }
    let trial = |(name, test): (&str, fn())| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    };
    libtest_mimic::run(&Arguments::from_args(), tests.into_iter().map(trial).collect()).exit_code()
}

/// This executable as a program that runs `case`, free of any launcher's variables.
pub(crate) fn program(case: &str) -> Command {
    prepared(Command::new(env::current_exe().unwrap()), case)
}

/// The same through a shell that first runs `prelude`.
pub(crate) fn program_after(prelude: &str, case: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("{prelude}; exec \"$0\"")).arg(env::current_exe().unwrap());
    prepared(shell, case)
}

fn prepared(mut command: Command, case: &str) -> Command {
    for name in ["RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE", "RUST_BACKTRACE"] {
        command.env_remove(name);
    }
    command.env(CASE, case).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs `command` until it *and all that inherited its output* have ended; kills it at the limit.
pub(crate) fn finish(mut command: Command) -> Output {
    let mut child = command.spawn().unwrap();
    let (stdout, stderr) = (drain(child.stdout.take().unwrap()), drain(child.stderr.take().unwrap()));
    let ended = stdout.recv_timeout(LIMIT).and_then(|out| Ok((out, stderr.recv_timeout(LIMIT)?)));
    if ended.is_err() {
        child.kill().unwrap();
    }
    let status = child.wait().unwrap();
    let (stdout, stderr) = ended.expect("the program or one of its workers did not end in time");
    Output { status, stdout, stderr }
}

/// Whether everything that holds this end of a pipe ends within the limit.
pub(crate) fn ends(pipe: impl Read + Send + 'static) -> bool {
    drain(pipe).recv_timeout(LIMIT).is_ok()
}

fn drain(mut pipe: impl Read + Send + 'static) -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).unwrap();
        // The receiver is gone if it timed out.
        let _ = sender.send(bytes);
    });
    receiver
}

/// A process that is killed and reaped when the test fails.
pub(crate) struct Guarded(pub(crate) Child);

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
