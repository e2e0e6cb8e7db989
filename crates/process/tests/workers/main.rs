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

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    if let Some(code) = lockstep_process::internal_main() {
        return code;
    }
    if std::env::args_os().nth(1).is_some_and(|name| name == agent_main::AGENT) {
        return agent_main::main();
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
