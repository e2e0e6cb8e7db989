//! Real worker processes: how they start and end, and that no process outlives its agent.
//!
//! Each test runs an agent in a process of its own, since an agent adopts every orphan among its descendants. The agent
//! is this executable, called with the subcommand of [`agent_main`]; it reports what happens line by line.

#![allow(clippy::unwrap_used)] // a test may

mod agent;
mod agent_main;
mod ends;
mod orphans;
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
        if name == agent_main::AGENT {
            return agent_main::main(rest);
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
