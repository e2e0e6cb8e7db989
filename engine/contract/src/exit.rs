//! The exit codes as numbers, of a launcher and of a training program.
//!
//! Which error ends with which code: `lockstep_launch::exit` for commands; a training program's runtime has a mapping of its own.

use std::process::ExitCode;

use crate::snapshot_request::SAVED;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Code {
    Success = 0,
    Failure = 1,
    /// The request was wrong, and nothing was started. clap exits with the same number by itself when it refuses the arguments.
    Usage = 2,
    /// A snapshot is saved, and the run ended as a signal asked.
    Saved = SAVED,
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        ExitCode::from(code as u8)
    }
}
