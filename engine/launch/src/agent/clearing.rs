//! What happens after the last worker's end: programs that shells left behind get the rest of the grace, everything else is ended, and
//! the output is read to its end.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use lockstep_contract::foreign;
use lockstep_process::{Left, Orphan, Signal, Swept, Workers, signal_name};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{timeout, timeout_at};

use super::run::{Agent, at};
use super::state_machine::Event;
use super::workers::Clearing;
use crate::output::Outputs;

/// How long the readers of a program's output, such as tee(1), may take to end after it.
const READERS: Duration = Duration::from_millis(500);

/// The number of processes that a line names.
const NAMED: usize = 8;
/// Time limit for reading what dead workers left in pipes and for ending the processes that they left behind.
const CLEAR: Duration = Duration::from_secs(5);
/// The same limit after a second signal: enough for processes that were just killed.
const HURRY: Duration = Duration::from_millis(200);

impl Agent<'_> {
    pub(super) fn begin_clearing(&mut self) {
        let killed = self.current.sent.contains(&Signal::KILL.as_raw());
        self.current.clearing = Some(if killed { Clearing::Patiently } else { Clearing::AfterGrace });
    }

    /// While leftovers of the workers are awaited, only signals are handled; news of other nodes can wait.
    pub(super) async fn next_while_clearing(&mut self, clearing: Clearing) -> Option<Event> {
        if clearing == Clearing::AfterGrace {
            let left = self.workers.end_left(self.last_request());
            if !left.is_empty() {
                return self.next_in_grace(left).await;
            }
            self.current.clearing = Some(Clearing::Patiently);
        }
        (self.current.kill_at, self.current.ask_grace_at) = (None, None);
        let Agent { workers, signals, current, .. } = self;
        let verdict_at = current.verdict_at;
        tokio::select! {
            biased;
            signal = signals.next() => self.note_signal(signal),
            () = at(verdict_at) => {
                self.say_provisional();
                None
            }
            left = clear(workers, current.outputs.as_mut(), clearing) => {
                (self.current.clearing, self.current.verdict_at) = (None, None);
                left.iter().for_each(|left| self.say(left));
                self.current.failures = self.current.collect_failures(&self.context);
                self.current.judge(&self.context, self.machine.restarts_left());
                self.current.record_verdict(&self.context);
                Some(Event::Cleared)
            }
        }
    }

    /// Waits until these programs have ended, or the grace is over.
    async fn next_in_grace(&mut self, left: Vec<Left>) -> Option<Event> {
        if !std::mem::replace(&mut self.current.left_said, true) {
            let programs = left.iter().filter(|left| left.handles).map(|left| &left.orphan);
            let names: Vec<String> = programs.map(|Orphan { name, pid }| format!("{name} (pid {pid})")).collect();
            self.limit_grace();
            self.say(&format!(
                "waiting for {}, which goes on after its shell because it handles {}",
                names.join(", "),
                signal_name(self.last_request().as_raw())
            ));
        }
        let (kill_at, ask_grace_at, verdict_at) =
            (self.current.kill_at, self.current.ask_grace_at, self.current.verdict_at);
        tokio::select! {
            biased;
            signal = self.signals.next() => return self.note_signal(signal),
            () = at(kill_at) => {
                self.say("the grace of what the workers left behind is over");
                self.current.clearing = Some(Clearing::Patiently);
            }
            () = ends(left) => self.current.clearing = Some(Clearing::Patiently),
            answer = self.batch.next() => self.note_answer(answer),
            () = at(ask_grace_at) => self.ask_for_grace(),
            () = at(verdict_at) => self.say_provisional(),
        }
        None
    }

    /// The last signal by which the workers were asked to end.
    fn last_request(&self) -> Signal {
        self.current.sent.last().and_then(|signal| Signal::from_named_raw(*signal)).unwrap_or(Signal::TERM)
    }
}

/// Waits until nothing of the workers is left; returns messages about what went on after them and could not be ended or written. Can be
/// called again after a cancellation.
async fn clear(workers: &mut Workers, outputs: Option<&mut Outputs>, clearing: Clearing) -> Vec<String> {
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
async fn ends(left: Vec<Left>) {
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
