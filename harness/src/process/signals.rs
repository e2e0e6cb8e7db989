//! Signals that ask this command to end, as something that can be waited for.

use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

/// From its making on, SIGINT, SIGTERM and SIGHUP no longer end this process; they are told here.
#[derive(Default)]
pub(crate) struct Signals {
    pipes: Vec<(i32, UnixStream)>,
}

impl Signals {
    /// Listens. A signal that this process was started to ignore (`nohup`, a shell's `&`) stays ignored.
    pub(crate) fn listen() -> io::Result<Self> {
        let ignored = ignored(&fs::read_to_string("/proc/self/status")?);
        let heard = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| ignored & bit(*signal) == 0);
        Ok(Signals { pipes: heard.map(|signal| Ok((signal, told_of(signal)?))).collect::<io::Result<_>>()? })
    }

    /// What becomes readable when a signal arrives.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.pipes.iter().map(|(_, pipe)| pipe.as_fd())
    }

    /// A signal that has arrived, if any, told once.
    pub(crate) fn arrived(&self) -> Option<i32> {
        let arrived = self.pipes.iter().find(|(_, pipe)| {
            let mut pipe = pipe;
            pipe.read(&mut [0]).is_ok()
        });
        arrived.map(|(signal, _)| *signal)
    }
}

fn told_of(signal: i32) -> io::Result<UnixStream> {
    let (read, write) = UnixStream::pair()?;
    read.set_nonblocking(true)?;
    pipe::register(signal, write)?;
    Ok(read)
}

fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// The mask of ignored signals in the text of `/proc/PID/status` (proc(5), field `SigIgn`).
fn ignored(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_which_signals_are_ignored() {
        assert_eq!(ignored("Name:\tx\nSigIgn:\t0000000000000003\nSigCgt:\tff\n"), bit(SIGHUP) | bit(SIGINT));
        assert_eq!(ignored("Name:\tx\n"), 0);
    }
}
