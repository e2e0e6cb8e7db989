//! The end of an attempt's workers: the grace period after they were asked to end, and what follows when the last has ended. Programs
//! that shells left behind get the rest of the grace, everything else is ended, and the output is read to its end.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use lockstep_contract::foreign;
use lockstep_process::{Exit, KILL_LIMIT, Left, Orphan, Signal, Swept, Workers, signal_name};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{timeout, timeout_at};

use crate::output::Outputs;

/// How long the readers of a program's output, such as tee(1), may take to end after it.
const READERS: Duration = Duration::from_millis(500);

/// The number of processes that a line names.
const NAMED: usize = 8;
/// Time limit for reading what dead workers left in pipes and for ending the processes that they left behind.
const CLEAR: Duration = Duration::from_secs(5);
/// The limit after a second signal: enough for processes that were just killed.
const HURRY: Duration = Duration::from_millis(200);

/// How leftovers of the workers are awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Clearing {
    /// Programs that shells left behind, and that have something to do first, get the rest of the grace.
    AfterGrace,
    /// Up to the usual time limit.
    Patiently,
    /// Briefly, because the user has asked for the end twice.
    Quickly,
}

/// How the workers of the current attempt end.
#[derive(Debug, Default)]
pub(super) struct Ending {
    /// When workers that were asked to end are killed.
    pub(super) kill_at: Option<Instant>,
    /// When that grace period began.
    grace_began: Option<Instant>,
    /// When the scheduler is asked whether it gives more time.
    pub(super) ask_grace_at: Option<Instant>,
    /// Workers that had ended, without a reported death, before the others were asked to; by local rank.
    ended_before: Vec<usize>,
    /// The signals that were sent to the workers.
    sent: Vec<i32>,
    /// Set while leftovers of the workers are awaited.
    pub(super) clearing: Option<Clearing>,
    /// The agent has printed that a program goes on after its shell.
    left_said: bool,
}

impl Ending {
    /// Asks all workers to end.
    pub(super) fn ask(&mut self, workers: &mut Workers, signal: Signal) {
        if self.sent.is_empty() {
            self.ended_before = workers.ended();
        }
        self.sent.push(signal.as_raw());
        workers.end(signal);
        self.kill_at = None;
    }

    /// Begins the grace period, unless one has begun. `ask_at` is when the scheduler is asked for more.
    pub(super) fn begin_grace(&mut self, grace: Duration, ask_at: Option<Instant>) {
        if self.kill_at.is_none() {
            let now = Instant::now();
            self.grace_began = Some(now);
            self.kill_at = Some(later(now, grace));
            self.ask_grace_at = ask_at;
        }
    }

    /// The scheduler, by its program `from`, gives the workers this time. Returns a line to print if they had less.
    pub(super) fn prolong_grace(&mut self, grace: Duration, from: &str) -> Option<String> {
        let is_killed = self.sent.contains(&Signal::KILL.as_raw());
        // The last tenth is for the report.
        let given = grace * 9 / 10;
        let until = self.grace_began? + given;
        if is_killed || until <= self.kill_at? {
            return None;
        }
        self.kill_at = Some(until);
        let (given, grace) = (given.as_secs_f64(), grace.as_secs());
        Some(format!("the workers have {given:.0} s to end, as the scheduler gives {grace} s ({from})"))
    }

    /// Kills all workers. One that is alive after `grace`, or after the usual limit if that is longer, waits in the kernel, perhaps for ever.
    pub(super) fn kill(&mut self, workers: &mut Workers, grace: Duration) {
        self.kill_at = Some(later(Instant::now(), KILL_LIMIT.max(grace)));
        self.ask_grace_at = None;
        self.sent.push(Signal::KILL.as_raw());
        workers.kill();
    }

    pub(super) fn begin_clearing(&mut self) {
        let killed = self.sent.contains(&Signal::KILL.as_raw());
        self.clearing = Some(if killed { Clearing::Patiently } else { Clearing::AfterGrace });
    }

    /// Returns true if the worker ended because this agent asked it to. False if it ended before, or by a signal that
    /// this agent did not send.
    pub(super) fn stopped(&self, worker: usize, exit: &Exit) -> bool {
        let by_another = matches!(exit, Exit::Signal(signal) if !self.sent.contains(signal));
        !self.ended_before.contains(&worker) && !by_another
    }

    /// The last signal by which the workers were asked to end.
    pub(super) fn last_request(&self) -> Signal {
        self.sent.last().and_then(|signal| Signal::from_named_raw(*signal)).unwrap_or(Signal::TERM)
    }

    /// The line about programs that go on after their shells; `None` if it was printed.
    pub(super) fn describe_left(&mut self, left: &[Left]) -> Option<String> {
        if std::mem::replace(&mut self.left_said, true) {
            return None;
        }
        let programs = left.iter().filter(|left| left.handles).map(|left| &left.orphan);
        let names: Vec<String> = programs.map(|Orphan { name, pid }| format!("{name} (pid {pid})")).collect();
        let signal = signal_name(self.last_request().as_raw());
        Some(format!("waiting for {}, which goes on after its shell because it handles {signal}", names.join(", ")))
    }
}

/// A duration that the clock cannot represent counts as a year.
fn later(now: Instant, duration: Duration) -> Instant {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    now.checked_add(duration).unwrap_or(now + YEAR)
}

/// Waits until nothing of the workers is left; returns messages about what went on after them and could not be ended or written. Can be
/// called again after a cancellation.
pub(super) async fn clear(workers: &mut Workers, outputs: Option<&mut Outputs>, clearing: Clearing) -> Vec<String> {
    let limit = if clearing == Clearing::Quickly { HURRY } else { CLEAR };
    let Swept { killed, left } = sweep(workers, limit).await;
    let named = |orphans: &[Orphan]| {
        let names = orphans.iter().take(NAMED).map(|Orphan { name, pid }| format!("{name} (pid {pid})"));
        let more = orphans.len().checked_sub(NAMED + 1).map(|more| format!("and {} more", more + 1));
        names.chain(more).collect::<Vec<_>>().join(", ")
    };
    let mut said = Vec::new();
    if !killed.is_empty() {
        said.push(format!("ended what the workers left behind: {}", named(&killed)));
    }
    if !left.is_empty() {
        said.push(format!("what the workers left behind cannot be killed: {}", named(&left)));
    }
    if let Some(outputs) = outputs {
        if clearing == Clearing::Quickly && timeout(HURRY, outputs.finish(HURRY)).await.is_err() {
            // Some process still writes, and may never stop.
            outputs.finish(Duration::ZERO).await;
        }
        let failed = outputs.finish(limit).await.failed.into_iter();
        said.extend(failed.map(|(path, why)| format!("the log {} is not complete: {why}", foreign::path(&path))));
    }
    said
}

/// [`Workers::sweep`] without blocking. Can be called again after a cancellation.
async fn sweep(workers: &mut Workers, limit: Duration) -> Swept {
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

/// Waits until the programs among these have ended, and then briefly for the others, which may read the programs' output.
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

/// Notifies the runtime when this descriptor is readable.
pub(super) fn listen(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // Deprecated because the descriptor of some types may change while it is registered; that of an `OwnedFd` never does.
    // The replacement is unsafe: its caller guarantees the same.
    #[allow(deprecated)]
    AsyncFd::with_interest(descriptor, Interest::READABLE)
}
