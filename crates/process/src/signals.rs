//! Signals that ask this process to end, as descriptors that can be polled together with others.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

use super::proc::Status;

/// Once this exists, SIGINT, SIGTERM and SIGHUP no longer end this process; they are reported here.
#[derive(Default)]
pub struct Signals {
    pipes: Vec<(i32, UnixStream)>,
}

impl Signals {
    /// Handles these signals. One that this process was started to ignore (`nohup`) stays ignored.
    ///
    /// # Errors
    /// The system's error.
    pub fn listen() -> io::Result<Self> {
        let heard = not_ignored(&[SIGINT, SIGTERM, SIGHUP])?.into_iter();
        Ok(Signals { pipes: heard.map(|signal| Ok((signal, pipe_of(signal)?))).collect::<io::Result<_>>()? })
    }

    /// Listens to no signal, but to this pipe: when its other end is dropped, signal 0 arrives.
    ///
    /// # Errors
    /// The system's error.
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
/// There is no `/proc`.
pub fn not_ignored(signals: &[i32]) -> io::Result<Vec<i32>> {
    // A shell makes background processes (`&`) ignore SIGINT and SIGQUIT, so that Ctrl-C does not reach them. A process
    // that sends one on purpose means it, so it is handled, as in torchrun.
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
