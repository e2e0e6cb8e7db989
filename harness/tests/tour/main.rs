//! `lockstep tour`, `inject` and `verify` from outside: the real command with fake labs that tell the truth or lie, and with
//! the real labs.
//!
//! This executable is also the fake labs: the command finds and starts a link to it with a lab's name, next to a link to the
//! command.

#![allow(clippy::unwrap_used)] // a test may

mod fake_resume;
mod fake_spawn;
mod inject;
#[path = "../it/shown.rs"]
#[allow(dead_code)] // the other test program uses all of it
mod shown;
mod signals;
mod site;
mod tour;
mod verify;
mod with_real_labs;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    let name = std::env::current_exe().unwrap();
    match name.file_name().and_then(|name| name.to_str()) {
        Some(site::SPAWN) => return fake_spawn::main(),
        Some(site::RESUME) => return fake_resume::main(),
        _ => {}
    }
    let tests = [tour::TESTS, inject::TESTS, verify::TESTS, signals::TESTS, with_real_labs::TESTS].concat();
    let trial = |(name, test): (&str, fn())| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    };
    libtest_mimic::run(&Arguments::from_args(), tests.into_iter().map(trial).collect()).exit_code()
}
