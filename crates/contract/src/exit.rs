//! The exit code of a launcher and of a training program.

use std::process::ExitCode;

use crate::wish::SAVED;

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Code {
    /// Nothing failed.
    Success = 0,
    /// Something failed.
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
