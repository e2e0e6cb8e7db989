//! `lockstep tour`, `inject` and `verify` from outside: the real command with fake labs that tell the truth or lie, and with
//! the real labs.
//!
//! This executable is also the fake labs: the command finds and starts a link to it with a lab's name, next to a link to the
//! command.

#![allow(clippy::unwrap_used)] // a test may

mod fakes;
mod inject;
#[path = "../it/shown.rs"]
#[allow(dead_code)] // the other test program uses all of it
mod shown;
mod site;
mod tour;
mod verify;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    let name = std::env::current_exe().unwrap();
    match name.file_name().and_then(|name| name.to_str()) {
        Some(site::SPAWN) => return fakes::be_spawn(),
        Some(site::RESUME) => return fakes::be_resume(),
        _ => {}
    }
    let tests = [tour::TESTS, inject::TESTS, verify::TESTS, inject::ENDS, verify::WITH_REAL_LABS].concat();
    let trial = |(name, test): (&str, fn())| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    };
    libtest_mimic::run(&Arguments::from_args(), tests.into_iter().map(trial).collect()).exit_code()
}
