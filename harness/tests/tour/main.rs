//! `lockstep tour` from outside: the real command against a lab that tells the truth or lies, and against the real lab.
//!
//! This executable is the fake lab too: a link to it by the lab's name, beside a link to the command, is what the tour
//! finds and starts.

#![allow(clippy::unwrap_used)] // a test may

mod fake;
mod signals;
mod site;
mod verdicts;
mod with_real_lab;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    if fake::is_wanted() {
        return fake::main();
    }
    let tests = verdicts::TESTS.iter().chain(signals::TESTS).chain(with_real_lab::TESTS);
    let trial = |&(name, test): &(&str, fn())| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    };
    libtest_mimic::run(&Arguments::from_args(), tests.map(trial).collect()).exit_code()
}
