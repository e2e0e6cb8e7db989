//! The hidden subcommands of an executable that starts processes with this crate.

use std::ffi::OsString;
use std::process::ExitCode;

use super::{DIES_WITH_PARENT, REAPER, parent_death, reaper_main};

/// The exit code of a helper that could not start its program, as in a shell.
const NOT_STARTED: u8 = 127;

/// Runs a hidden subcommand of this executable by its name, [`DIES_WITH_PARENT`] or [`REAPER`], with the arguments that
/// follow the name; `None` for any other name. An executable that starts workers calls it before anything else, in
/// particular before it starts a thread.
///
/// [`DIES_WITH_PARENT`] returns only if it could not become the program.
pub fn helper(name: &str, args: &[OsString]) -> Option<anyhow::Result<()>> {
    match name {
        DIES_WITH_PARENT => Some(parent_death::exec(args)),
        REAPER => Some(reaper_main::run(args)),
        _ => None,
    }
}

/// As [`helper`], by this process's own arguments, but prints the error, and returns the exit code for `main`.
pub fn helper_main() -> Option<ExitCode> {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let (name, args) = args.split_first()?;
    let name = name.to_str()?;
    helper(name, args).map(|done| helper_code(name, done))
}

/// The exit code of a helper, after its error was printed.
pub fn helper_code(name: &str, done: anyhow::Result<()>) -> ExitCode {
    match done {
        Ok(()) if name == REAPER => return ExitCode::SUCCESS,
        Ok(()) => (), // Whoever started it has received the reason.
        Err(error) => eprintln!("error: {error:#}"),
    }
    ExitCode::from(NOT_STARTED)
}
