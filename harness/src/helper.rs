//! The program that the launcher's workers begin as, and its reaper: [`lockstep_process::HELPER`]. It is not for people.

use std::process::ExitCode;

fn main() -> ExitCode {
    lockstep_process::helper_main().unwrap_or_else(|| {
        eprintln!("error: this program is not for people: use `lockstep run`");
        ExitCode::from(2)
    })
}
