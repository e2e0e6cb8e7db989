//! Which error ends a command, such as `lockstep`, with which exit code ([`Code`]), and the `main` wrapper that returns the code.

use std::process::ExitCode;

use lockstep_contract::error_file;
pub use lockstep_contract::exit::Code;
use lockstep_process::signal_name;

/// An error before anything was started; the command exits with [`Code::Usage`].
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

/// A signal asked the command to end; it has stopped everything that it started. Ends the command by the same signal.
#[derive(Debug, thiserror::Error)]
#[error("stopped by {}", signal_name(*signal))]
pub struct Interrupted {
    /// The signal's number.
    pub signal: i32,
}

/// Runs the command; prints an error once, with its chain, and turns it into the exit code.
pub fn main(run: impl FnOnce() -> anyhow::Result<Code>) -> ExitCode {
    let error = match run() {
        Ok(code) => return ExitCode::from(code),
        Err(error) => error,
    };
    lockstep_contract::warn(&error_file::printed(&error));
    match error.downcast_ref() {
        Some(Interrupted { signal }) => die_of(*signal),
        None => ExitCode::from(code_of(&error)),
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

#[cfg(test)]
mod tests {

    use super::*;

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
