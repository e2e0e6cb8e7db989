//! Waits of the agent's runtime for processes: deaths of workers, ends of orphans, signals to the agent.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::task::Poll;
use std::time::{Duration, Instant};

use lockstep_process::{Died, Left, Swept, Workers, not_ignored, signal_name};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{sleep_until, timeout, timeout_at};

use crate::config::{Response, Signals};

/// How long the readers of a program's output, such as tee(1), may take to end after it.
const READERS: Duration = Duration::from_millis(500);

/// Notifies the runtime when `workers` have something to report.
///
/// # Errors
/// The system's error.
pub(super) fn ready(workers: &Workers) -> io::Result<AsyncFd<OwnedFd>> {
    listen(workers.as_fd().try_clone_to_owned()?)
}

/// The next death. Cancelling loses none. While no worker is alive, it waits for ever.
pub(super) async fn next_death(workers: &mut Workers, ready: &AsyncFd<OwnedFd>) -> io::Result<Died> {
    loop {
        let mut guard = ready.readable().await?;
        if let Some(died) = workers.next(Some(std::time::Instant::now()))? {
            return Ok(died);
        }
        guard.clear_ready();
    }
}

/// [`Workers::sweep`] without blocking. After a cancellation, it can begin again.
pub(super) async fn sweep(workers: &mut Workers, limit: Duration) -> Swept {
    let mut sweep = workers.begin_sweep(limit);
    while let Some(dying) = workers.kill_generation(&mut sweep) {
        for pidfd in dying {
            let Ok(ended) = listen(pidfd) else { continue };
            // After a timeout the process still exists, so the next search finds it.
            let _ = timeout_at(sweep.deadline().into(), ended.readable()).await;
        }
    }
    workers.end_sweep(sweep)
}

/// Waits until the programs among these have ended, and then shortly for the others, which may read their output.
pub(super) async fn ends(left: Vec<Left>) {
    let (programs, others): (Vec<_>, Vec<_>) = left.into_iter().partition(|left| left.handles);
    all_end(programs).await;
    let _ = timeout(READERS, all_end(others)).await;
}

async fn all_end(left: Vec<Left>) {
    for Left { pidfd, .. } in left {
        if let Ok(ended) = listen(pidfd) {
            let _ = ended.readable().await;
        }
    }
}

fn listen(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // Deprecated for types whose descriptor may change while it is registered; that of an `OwnedFd` never does. The
    // replacement is unsafe, so that the caller guarantees the same.
    #[allow(deprecated)]
    AsyncFd::with_interest(descriptor, Interest::READABLE)
}

/// The signals to this process that it handles.
pub(super) struct SignalStream {
    streams: Vec<(i32, Signal)>,
}

impl SignalStream {
    /// Handles these signals, by number. One that this process was started to ignore stays ignored.
    ///
    /// # Errors
    /// One cannot be handled (SIGKILL, SIGSTOP, not a signal); the error names it.
    pub(super) fn listen(signals: &[i32]) -> io::Result<Self> {
        let streams = not_ignored(signals)?.into_iter().map(|number| {
            let stream = signal(SignalKind::from_raw(number));
            let named = |error| io::Error::other(format!("cannot handle {}: {error}", signal_name(number)));
            Ok((number, stream.map_err(named)?))
        });
        Ok(SignalStream { streams: streams.collect::<io::Result<_>>()? })
    }

    /// The next signal that arrives. Cancelling loses none; several of one kind may arrive as one.
    pub(super) async fn next(&mut self) -> i32 {
        std::future::poll_fn(|context| {
            let mut streams = self.streams.iter_mut();
            let arrived = streams.find_map(|(number, stream)| stream.poll_recv(context).is_ready().then_some(*number));
            arrived.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// The next signal that asks for the end. Others have no meaning while no worker runs.
    pub(super) async fn next_that_ends(&mut self, signals: &Signals) -> i32 {
        loop {
            let signal = self.next().await;
            if !matches!(signals.response(signal), Response::PassOn { .. }) {
                return signal;
            }
        }
    }
}

/// Sleeps until this time; for ever if it is `None`.
pub(super) async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn reports_a_signal_and_refuses_one_that_cannot_be_handled() {
        let mut signals = SignalStream::listen(&[signal_hook::consts::SIGUSR1, signal_hook::consts::SIGUSR2]).unwrap();
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::USR2).unwrap();
        assert_eq!(signals.next().await, signal_hook::consts::SIGUSR2);
        let Err(error) = SignalStream::listen(&[signal_hook::consts::SIGKILL]) else { panic!("handled") };
        assert!(error.to_string().starts_with("cannot handle SIGKILL: "), "{error}");
    }
}
