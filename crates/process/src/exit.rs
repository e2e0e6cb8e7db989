//! How a process ended, in words.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use rustix::process::WaitIdStatus;

/// How a process ended, as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It ended by itself, with this exit code (0 to 255).
    Code(i32),
    /// This signal ended it.
    Signal(i32),
    /// The program was never started; why, and what to do.
    NotStarted(String),
}

impl Exit {
    /// Returns true if the program ended by itself with code 0.
    pub fn success(&self) -> bool {
        *self == Exit::Code(0)
    }

    /// The number that torchrun shows (`exitcode` of its report): negative for signals. A program that was never started
    /// counts as 127, as in a shell.
    pub fn torch_code(&self) -> i32 {
        match self {
            Exit::Code(code) => *code,
            Exit::Signal(signal) => -signal,
            Exit::NotStarted(_) => 127,
        }
    }

    pub(super) fn of(status: &WaitIdStatus) -> Self {
        match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Exit::Code(code),
            (None, Some(signal)) => Exit::Signal(signal),
            // Only ends are waited for, so the kernel reports one of the two.
            (None, None) => Exit::Code(status.raw_code()),
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exit::Code(code) => write!(f, "exit code {code}"),
            Exit::Signal(signal) => f.write_str(&signal_name(*signal)),
            Exit::NotStarted(why) => write!(f, "not started: {why}"),
        }
    }
}

impl From<ExitStatus> for Exit {
    fn from(status: ExitStatus) -> Self {
        match status.signal() {
            Some(signal) => Exit::Signal(signal),
            // Of a child that was waited for, it is there unless a signal is.
            None => Exit::Code(status.code().unwrap_or(status.into_raw())),
        }
    }
}

/// The name of a signal by its number on this machine, such as `SIGKILL`.
pub fn signal_name(signal: i32) -> String {
    known_signal_name(signal).map_or_else(|| format!("signal {signal}"), str::to_owned)
}

/// The same; `None` for a number without a name.
pub fn known_signal_name(signal: i32) -> Option<&'static str> {
    let index = usize::try_from(signal).ok()?.checked_sub(1)?;
    SIGNALS.get(index).copied()
}

/// The number of a signal by its name.
pub fn signal_number(name: &str) -> Option<i32> {
    SIGNALS.iter().position(|known| *known == name).map(|index| index as i32 + 1)
}

/// Names from signal(7), for Linux on x86 and ARM.
#[rustfmt::skip]
const SIGNALS: [&str; 31] = [
    "SIGHUP", "SIGINT", "SIGQUIT", "SIGILL", "SIGTRAP", "SIGABRT", "SIGBUS", "SIGFPE", "SIGKILL", "SIGUSR1", "SIGSEGV",
    "SIGUSR2", "SIGPIPE", "SIGALRM", "SIGTERM", "SIGSTKFLT", "SIGCHLD", "SIGCONT", "SIGSTOP", "SIGTSTP", "SIGTTIN",
    "SIGTTOU", "SIGURG", "SIGXCPU", "SIGXFSZ", "SIGVTALRM", "SIGPROF", "SIGWINCH", "SIGIO", "SIGPWR", "SIGSYS",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_signals_and_negates_their_numbers() {
        let names =
            [(9, "SIGKILL"), (11, "SIGSEGV"), (6, "SIGABRT"), (15, "SIGTERM"), (7, "SIGBUS"), (40, "signal 40")];
        for (number, name) in names {
            assert_eq!(Exit::Signal(number).to_string(), name);
            assert_eq!(Exit::Signal(number).torch_code(), -number);
            assert_eq!(signal_number(name), known_signal_name(number).map(|_| number));
        }
    }

    #[test]
    fn a_program_that_was_never_started_is_no_exit_with_127() {
        let never = Exit::NotStarted("x is a folder".into());
        assert_eq!((never.torch_code(), Exit::Code(127).torch_code()), (127, 127));
        assert_ne!(never, Exit::Code(127));
        assert_eq!(never.to_string(), "not started: x is a folder");
        assert!(!never.success() && !Exit::Code(1).success() && Exit::Code(0).success());
    }
}
