//! Signals that ask this process to end, as something that can be waited for: with other descriptors ([`Signals`]) or in
//! a tokio runtime ([`SignalStream`]).

use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::task::Poll;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::pipe;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// From its making on, SIGINT, SIGTERM and SIGHUP no longer end this process; they are told here.
#[derive(Default)]
pub struct Signals {
    pipes: Vec<(i32, UnixStream)>,
}

impl Signals {
    /// Listens. A signal that this process was started to ignore (`nohup`, a shell's `&`) stays ignored.
    ///
    /// # Errors
    /// The system's own.
    pub fn listen() -> io::Result<Self> {
        let heard = not_ignored(&[SIGINT, SIGTERM, SIGHUP])?.into_iter();
        Ok(Signals { pipes: heard.map(|signal| Ok((signal, told_of(signal)?))).collect::<io::Result<_>>()? })
    }

    /// What becomes readable when a signal arrives.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.pipes.iter().map(|(_, pipe)| pipe.as_fd())
    }

    /// A signal that has arrived, if any, told once.
    pub fn arrived(&self) -> Option<i32> {
        let arrived = self.pipes.iter().find(|(_, pipe)| {
            let mut pipe = pipe;
            pipe.read(&mut [0]).is_ok()
        });
        arrived.map(|(signal, _)| *signal)
    }
}

/// The same in a tokio runtime, for the signals that its user chooses (torchrun's `--signals-to-handle`).
pub struct SignalStream {
    heard: Vec<(i32, Signal)>,
}

impl SignalStream {
    /// Listens to these signals, by number. One that this process was started to ignore stays ignored.
    ///
    /// # Errors
    /// When one cannot be handled (SIGKILL, SIGSTOP, no signal at all), with its name.
    pub fn listen(signals: &[i32]) -> io::Result<Self> {
        let heard = not_ignored(signals)?.into_iter().map(|number| {
            let stream = signal(SignalKind::from_raw(number));
            let told = |error| io::Error::other(format!("cannot handle {}: {error}", super::signal_name(number)));
            Ok((number, stream.map_err(told)?))
        });
        Ok(SignalStream { heard: heard.collect::<io::Result<_>>()? })
    }

    /// The next signal that arrives. Cancelling loses none; several of one kind may count as one.
    pub async fn next(&mut self) -> i32 {
        std::future::poll_fn(|context| {
            let arrived = self
                .heard
                .iter_mut()
                .find_map(|(number, stream)| stream.poll_recv(context).is_ready().then_some(*number));
            arrived.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

fn not_ignored(signals: &[i32]) -> io::Result<Vec<i32>> {
    // A shell lets what it starts by `&` ignore SIGINT and SIGQUIT, so that its terminal's do not reach it; whoever sends one
    // on purpose means it, as to torchrun.
    let ignored = ignored(&fs::read_to_string("/proc/self/status")?) & bit(SIGHUP);
    Ok(signals.iter().copied().filter(|signal| ignored & bit(*signal) == 0).collect())
}

fn told_of(signal: i32) -> io::Result<UnixStream> {
    let (read, write) = UnixStream::pair()?;
    read.set_nonblocking(true)?;
    pipe::register(signal, write)?;
    Ok(read)
}

fn bit(signal: i32) -> u64 {
    signal.checked_sub(1).and_then(|place| 1_u64.checked_shl(place as u32)).unwrap_or(0)
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
        assert_eq!((bit(0), bit(65), bit(-1), bit(1), bit(64)), (0, 0, 0, 1, 1 << 63));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn tells_a_signal_and_refuses_one_that_cannot_be_handled() {
        let mut signals = SignalStream::listen(&[signal_hook::consts::SIGUSR1, signal_hook::consts::SIGUSR2]).unwrap();
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::USR2).unwrap();
        assert_eq!(signals.next().await, signal_hook::consts::SIGUSR2);
        let Err(error) = SignalStream::listen(&[signal_hook::consts::SIGKILL]) else { panic!("handled") };
        assert!(error.to_string().starts_with("cannot handle SIGKILL: "), "{error}");
    }
}
