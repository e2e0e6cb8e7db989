//! How a process ended and what signals are called, as text; and the signals that ask this process itself to end, as descriptors that can
//! be polled together with others.

use std::fmt;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use rustix::process::WaitIdStatus;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

use super::proc::Status;

/// How a process ended, as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It exited with this code (0 to 255).
    Code(i32),
    /// This signal ended it.
    Signal(i32),
    /// The program was never started, with the reason and advice.
    NotStarted(String),
}

impl Exit {
    /// Returns true if the program exited with code 0.
    pub fn success(&self) -> bool {
        *self == Exit::Code(0)
    }

    /// The number that torchrun shows (`exitcode` in its report): negative for signals. A program that was never
    /// started counts as 127, as in a shell.
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
            // Only waits for ended processes come here, so the kernel reports one of the two.
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
            // A child that was waited for has a code unless a signal ended it.
            None => Exit::Code(status.code().unwrap_or(status.into_raw())),
        }
    }
}

/// The name of a signal by its number on this machine, such as `SIGKILL`.
pub fn signal_name(signal: i32) -> String {
    known_signal_name(signal).map_or_else(|| format!("signal {signal}"), str::to_owned)
}

/// Like [`signal_name`]; `None` for a number without a name.
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

/// Once this exists, SIGINT, SIGTERM and SIGHUP no longer end this process; they are reported here.
#[derive(Default)]
pub struct Signals {
    pipes: Vec<(i32, UnixStream)>,
}

impl Signals {
    /// Handles these signals. One that this process was started to ignore (`nohup`) stays ignored.
    pub fn listen() -> io::Result<Self> {
        let heard = not_ignored(&[SIGINT, SIGTERM, SIGHUP])?.into_iter();
        Ok(Signals { pipes: heard.map(|signal| Ok((signal, pipe_of(signal)?))).collect::<io::Result<_>>()? })
    }

    /// Listens to this pipe instead of signals: when its other end is dropped, signal 0 arrives.
    pub fn until_closed(pipe: UnixStream) -> io::Result<Self> {
        pipe.set_nonblocking(true)?;
        Ok(Signals { pipes: vec![(0, pipe)] })
    }

    /// Descriptors that become readable when a signal arrives.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.pipes.iter().map(|(_, pipe)| pipe.as_fd())
    }

    /// A signal that has arrived, if any. Each is returned once.
    pub fn arrived(&self) -> Option<i32> {
        let arrived = self.pipes.iter().find(|(_, pipe)| {
            let mut pipe = pipe;
            pipe.read(&mut [0]).is_ok()
        });
        arrived.map(|(signal, _)| *signal)
    }
}

/// The signals among these that this process handles: not SIGHUP if it was started to ignore it (`nohup`).
///
/// # Errors
/// `/proc` is missing.
pub fn not_ignored(signals: &[i32]) -> io::Result<Vec<i32>> {
    // A shell makes background processes (`&`) ignore SIGINT and SIGQUIT, so that Ctrl-C does not reach them. A process
    // that sends one does so on purpose, so it is handled, as in torchrun.
    let status = Status::of_this_process().ok_or_else(|| io::Error::other("cannot read /proc/self/status"))?;
    let ignored = mask(status.field("SigIgn").unwrap_or_default()) & bit(SIGHUP);
    Ok(signals.iter().copied().filter(|signal| ignored & bit(*signal) == 0).collect())
}

fn pipe_of(signal: i32) -> io::Result<UnixStream> {
    let (read, write) = UnixStream::pair()?;
    read.set_nonblocking(true)?;
    pipe::register(signal, write)?;
    Ok(read)
}

fn bit(signal: i32) -> u64 {
    signal.checked_sub(1).and_then(|place| 1_u64.checked_shl(place as u32)).unwrap_or(0)
}

/// Parses a mask of signals from `/proc/PID/status` (proc(5)).
fn mask(hexadecimal: &str) -> u64 {
    u64::from_str_radix(hexadecimal, 16).unwrap_or(0)
}

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
    fn a_program_that_was_never_started_differs_from_exit_code_127() {
        let never = Exit::NotStarted("x is a folder".into());
        assert_eq!((never.torch_code(), Exit::Code(127).torch_code()), (127, 127));
        assert_ne!(never, Exit::Code(127));
        assert_eq!(never.to_string(), "not started: x is a folder");
        assert!(!never.success() && !Exit::Code(1).success() && Exit::Code(0).success());
    }

    #[test]
    fn a_pipe_counts_as_a_signal_once_its_other_end_is_dropped() {
        let (held, pipe) = UnixStream::pair().unwrap();
        let signals = Signals::until_closed(pipe).unwrap();
        assert_eq!(signals.arrived(), None);
        drop(held);
        assert_eq!(signals.arrived(), Some(0));
    }

    #[test]
    fn reads_which_signals_are_ignored() {
        assert_eq!(mask("0000000000000003"), bit(SIGHUP) | bit(SIGINT));
        assert_eq!(mask(""), 0);
        assert_eq!((bit(0), bit(65), bit(-1), bit(1), bit(64)), (0, 0, 0, 1, 1 << 63));
    }
}
