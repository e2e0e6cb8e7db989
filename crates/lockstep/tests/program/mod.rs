//! Tests that start themselves as a program: `main` runs the case named by a variable, or otherwise the tests.

#![allow(dead_code)] // each test program uses its part

use std::env;
use std::io::Read;
use std::process::{Command, ExitCode, Output, Stdio};
use std::time::Duration;

use libtest_mimic::{Arguments, Trial};
use lockstep_contract::clear_launcher;
pub(crate) use lockstep_process::KillOnDrop;
use lockstep_watchdog::{drain, receive};

const CASE: &str = "LOCKSTEP_TEST_CASE";

/// Longer than any rank takes to end.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// Runs the named case of `cases`, or the tests. Those whose name begins with `soak` run only when they are asked for: they take minutes.
pub(crate) fn main<const N: usize>(cases: fn(&str) -> anyhow::Result<()>, tests: [(&str, fn()); N]) -> ExitCode {
    if let Ok(case) = env::var(CASE) {
        return lockstep::exit::main(|| cases(&case));
    }
    let trial = |(name, test): (&str, fn())| {
        let run = move || {
            test();
            Ok(())
        };
        Trial::test(name, run).with_ignored_flag(name.starts_with("soak"))
    };
    libtest_mimic::run(&Arguments::from_args(), tests.into_iter().map(trial).collect()).exit_code()
}

/// This executable as a program that runs `case`, without any launcher's variables.
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
    clear_launcher(&mut command).env(CASE, case).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs `command` until it *and every process that inherited its output* have ended.
pub(crate) fn finish(command: Command) -> Output {
    lockstep_watchdog::output(command)
}

/// Waits until every process that holds this end of a pipe has ended.
pub(crate) fn until_closed(pipe: impl Read + Send + 'static) {
    receive(&drain(pipe)).expect("something still holds the pipe");
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
