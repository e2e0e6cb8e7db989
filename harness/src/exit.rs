//! The exit codes of `lockstep` ([`Code`]), their table for people ([`CODES`]), and the `main` wrapper that returns them.
//!
//! The codes of the programs that it starts are never passed on: the error's text contains them. Only `lockstep cluster exec` becomes
//! the program, and ends as it does.

use std::io::Write;
use std::process::ExitCode;

use lockstep_process::signal_name;

/// The codes for people: of `lockstep` and the labs, of set-up, of the test run. The book's page is generated from it.
pub(crate) const CODES: [[&str; 4]; 6] = [
    ["0", "everything requested was done", "libtorch is in place", "every step that can run here passed"],
    [
        "1",
        "a failure of a rank, of training or of the machine; an exercise that is not right",
        "a check or the fetch failed; the error has the command that fixes it",
        "a step failed; the last lines say which",
    ],
    ["2", "usage: bad arguments or input, nothing was started", "", ""],
    [
        "75",
        "a signal asked `lockstep run` or a lab for a snapshot and the end, and that is done: start it again to go on",
        "",
        "",
    ],
    ["101", "a panic: a bug", "", ""],
    ["128 + n", "ended by signal n", "the same", "the same"],
];

/// The table for `--help`.
pub(crate) const HELP: &str = "\
Exit codes: 0 nothing failed · 1 something failed · 2 usage, or something needed is missing · 128+n ended by signal n";

/// The command's exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Code {
    /// Nothing failed.
    Success = 0,
    /// Something failed.
    Failure = 1,
    /// It could not start. clap exits with the same number by itself when it refuses the arguments.
    Usage = 2,
    /// The workers saved a snapshot and ended, as a signal asked.
    Saved = lockstep_contract::wish::SAVED,
}

/// An error before anything was started; the command exits with [`Code::Usage`].
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Refused(pub(crate) String);

/// A signal asked the command to end; it has stopped everything that it started. Ends the command by the same signal.
#[derive(Debug, thiserror::Error)]
#[error("stopped by {}", signal_name(*signal))]
pub(crate) struct Interrupted {
    /// The signal's number.
    pub(crate) signal: i32,
}

/// Runs the command; prints an error once, with its chain, and turns it into the exit code.
pub(crate) fn main(run: impl FnOnce() -> anyhow::Result<Code>) -> ExitCode {
    let error = match run() {
        Ok(code) => return ExitCode::from(code as u8),
        Err(error) => error,
    };
    // The reader may be gone; the code reports the error too.
    let _ = writeln!(std::io::stderr(), "{}", with_causes(&error));
    match error.downcast_ref() {
        Some(Interrupted { signal }) => die_of(*signal),
        None => ExitCode::from(code_of(&error) as u8),
    }
}

fn code_of(error: &anyhow::Error) -> Code {
    if error.chain().any(|cause| cause.is::<Refused>()) { Code::Usage } else { Code::Failure }
}

/// Ends this process like the signal itself would, so that a shell's loop stops too.
fn die_of(signal: i32) -> ExitCode {
    let _ = signal_hook::low_level::emulate_default_handler(signal);
    ExitCode::from(128_u8.wrapping_add(signal as u8))
}

/// The error and its causes, one per line.
fn with_causes(error: &anyhow::Error) -> String {
    let causes = error.chain().skip(1).map(|cause| format!("\n  caused by: {cause}"));
    format!("error: {error}{}", causes.collect::<String>())
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn prints_a_chain_with_one_cause_per_line() {
        let error = Err::<(), _>(std::io::Error::other("disk full")).context("cannot save").context("run A failed");
        assert_eq!(
            with_causes(&error.unwrap_err()),
            "error: run A failed\n  caused by: cannot save\n  caused by: disk full"
        );
    }

    #[test]
    fn ends_with_2_for_what_could_not_start_and_1_for_failures() {
        let refused = anyhow::Error::from(Refused("no lab".into())).context("cannot start");
        assert_eq!(code_of(&refused), Code::Usage);
        assert_eq!(code_of(&anyhow::anyhow!("disk full")), Code::Failure);
    }

    #[test]
    fn names_the_signal_that_stopped_it() {
        assert_eq!(Interrupted { signal: 15 }.to_string(), "stopped by SIGTERM");
    }
}
