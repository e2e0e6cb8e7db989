//! Tests that start themselves as a program, in one program: `main` runs the case that a variable names, or otherwise the tests.
//! [`failures`] has ranks of a real job that die, [`recording`] what recordings say of jobs, [`spawn`] the guarantees of spawn, [`events`] the files of events, and
//! [`hostile`] files of weights whose reading must not take much memory. What ranks do is in [`killed`], [`soak`] and
//! [`spawn_cases`].

#![allow(clippy::unwrap_used)] // a test may

mod events;
mod failures;
mod hostile;
mod killed;
mod recording;
mod soak;
mod spawn;
mod spawn_cases;

use std::env;
use std::io::Read;
use std::process::{Command, ExitCode, Output, Stdio};
use std::time::Duration;

use libtest_mimic::{Arguments, Trial};
use lockstep_contract::clear_launcher;
pub(crate) use lockstep_process::KillOnDrop;
use lockstep_process::watchdog::{drain, receive};
pub(crate) use lockstep_testkit::text;

pub(crate) const CASE: &str = "LOCKSTEP_TEST_CASE";

/// Longer than any rank takes to end.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// A test's name and body.
pub(crate) type Test = (&'static str, fn());

fn main() -> ExitCode {
    if let Ok(name) = env::var(CASE) {
        if name == recording::LAUNCHER {
            return lockstep_launch::command::torchrun();
        }
        return lockstep::exit::main(|| case(&name));
    }
    let tests = [events::TESTS, failures::TESTS, hostile::TESTS, recording::TESTS, spawn::TESTS].concat();
    // Those whose name begins with `soak` run only when they are asked for: they take minutes.
    let trial = |(name, test): Test| {
        let run = move || {
            test();
            Ok(())
        };
        Trial::test(name, run).with_ignored_flag(name.starts_with("soak"))
    };
    libtest_mimic::run(&Arguments::from_args(), tests.into_iter().map(trial).collect()).exit_code()
}

/// Runs a case of the program. Its name begins with that of its module; those of [`failures`] have no such prefix.
fn case(name: &str) -> anyhow::Result<()> {
    match name.split_once(' ') {
        Some((events::CASE, case)) => events::case(case),
        Some((recording::CASE, case)) => recording::case(case),
        Some((spawn::CASE, case)) => spawn_cases::case(case),
        None if name == hostile::CASE => hostile::case(),
        _ => failures::case(name),
    }
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
    lockstep_process::watchdog::output(command)
}

/// Waits until every process that holds this end of a pipe has ended.
pub(crate) fn until_closed(pipe: impl Read + Send + 'static) {
    receive(&drain(pipe)).expect("something still holds the pipe");
}
