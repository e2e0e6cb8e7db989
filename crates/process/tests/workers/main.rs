//! Real worker processes: how they die, how they are ended, and that nothing outlives its agent.
//!
//! Each test runs an agent in a process of its own, since an agent takes in every orphan below it. The agent is this
//! executable, called with a scene's name; it tells what happens line by line.

#![allow(clippy::unwrap_used)] // a test may

mod actor;
mod ends;
mod orphans;
mod scene;
mod starts;

use std::ffi::OsString;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let Some((name, rest)) = args.split_first().and_then(|(name, rest)| Some((name.to_str()?, rest))) {
        if let Some(done) = lockstep_process::helper(name, rest) {
            return done.map_or(ExitCode::FAILURE, |()| ExitCode::from(127));
        }
        if name == actor::AGENT {
            return actor::main(rest);
        }
    }
    let tests = starts::TESTS.iter().chain(ends::TESTS).chain(orphans::TESTS);
    let trial = |&(name, test): &(&str, fn())| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    };
    libtest_mimic::run(&Arguments::from_args(), tests.map(trial).collect()).exit_code()
}
