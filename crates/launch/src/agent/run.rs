//! The agent's loop: everything that can happen is waited for in one place, turned into an event, and what the machine then
//! wants is done. What follows what is decided in [`super::state_machine`].

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use lockstep_events::{AgentEvent, AgentSink};
use tokio::sync::watch;
use tokio::time::{sleep_until, timeout};

use super::disconnect_monitor::DisconnectMonitor;
use super::live_status::LiveStatus;
use super::master::Master;
use super::membership::{Command, Membership, News};
use super::state_machine::{Action, Event, Outcome, Restart, StateMachine};
use super::{diagnostic_input, workers};
use crate::config::{Config, LogDir};
use crate::output::{Console, Outputs, Stream};
use crate::process::{Died, Exit, Signal, SignalStream, Workers, signal_name};
use crate::rendezvous::{Barrier, Change, Round};
use crate::report::Failure;

/// How long what dead workers left in pipes and what they left running may take to go.
const CLEAR: Duration = Duration::from_secs(5);
/// The same after a second request to end: enough for what was just killed.
const HURRY: Duration = Duration::from_millis(200);

/// How long the rendezvous may wait for the same thing before that is told.
const QUIET: Duration = Duration::from_secs(3);

/// Everything that the loop needs, opened.
pub(super) struct Agent<'a> {
    pub(super) config: &'a Config,
    pub(super) machine: StateMachine,
    pub(super) workers: Workers,
    pub(super) membership: Membership,
    /// Only where this agent hosts the store.
    pub(super) disconnect_monitor: Option<DisconnectMonitor>,
    pub(super) signals: SignalStream,
    pub(super) console: Console,
    pub(super) logs: LogDir,
    pub(super) events: AgentSink,
    pub(super) hostname: String,
    /// What is known of the place where the nodes meet.
    pub(super) diagnostic_input: diagnostic_input::DiagnosticInput,
    /// Only on a terminal.
    pub(super) status: Option<LiveStatus>,
    /// What the rendezvous waits for, in words.
    pub(super) reasons: watch::Receiver<String>,
    /// When it is said, unless it has changed by then.
    pub(super) say_reason_at: Option<Instant>,
    pub(super) current: Current,
    /// What is known already and need not be waited for.
    pub(super) pending: Option<Event>,
}

/// The workers of the present attempt, and what became of them.
#[derive(Default)]
pub(super) struct Current {
    /// Counts the starts of this node's workers.
    pub(super) attempt: Option<u64>,
    pub(super) formed: Option<(Round, Master)>,
    pub(super) outputs: Option<Outputs>,
    /// When each was started, by local rank.
    pub(super) started: Vec<SystemTime>,
    /// By local rank.
    pub(super) error_files: Vec<Option<PathBuf>>,
    /// When those that are asked to end are killed.
    pub(super) kill_at: Option<Instant>,
    /// Those that had ended before the others were asked to, though their ends were not told yet; by local rank.
    pub(super) ended_before: Vec<usize>,
    /// The signals that they were sent.
    pub(super) sent: Vec<i32>,
    /// Set while what is left of the workers is waited for.
    pub(super) clearing: Option<Clearing>,
    /// In the order of the kernel.
    pub(super) deaths: Vec<Death>,
    pub(super) failures: Vec<Failure>,
}

/// How what is left of the workers is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Clearing {
    /// As long as something comes.
    Patiently,
    /// A moment: somebody has asked for the end twice.
    InHaste,
}

/// A worker's end.
pub(super) struct Death {
    pub(super) died: Died,
    /// Whether this agent had asked it to.
    pub(super) stopped: bool,
}

impl Current {
    /// Whether this end is what a worker was asked for: not if it came before, or by a signal that this agent never sent.
    fn stopped(&self, worker: usize, exit: &Exit) -> bool {
        let by_another = matches!(exit, Exit::Signal(signal) if !self.sent.contains(signal));
        !self.ended_before.contains(&worker) && !by_another
    }
}

impl Agent<'_> {
    /// Runs the job to its end on this node.
    pub(super) async fn live(&mut self) -> Outcome {
        let mut actions = self.machine.begin();
        loop {
            for action in actions {
                if let Action::Finish(outcome) = action {
                    return outcome;
                }
                self.act(action);
            }
            let event = self.next().await;
            actions = self.machine.handle(event);
        }
    }

    async fn next(&mut self) -> Event {
        loop {
            if let Some(event) = self.pending.take() {
                return event;
            }
            if let Some(clearing) = self.current.clearing {
                return self.next_while_clearing(clearing).await;
            }
            let (kill_at, say_at) = (self.current.kill_at, self.say_reason_at);
            let redraw_at = self.show_status();
            let event = tokio::select! {
                biased;
                died = self.workers.next() => Some(match died {
                    Ok(died) => self.note_death(died),
                    Err(error) => Event::Closed(format!("cannot watch over the workers: {error}")),
                }),
                signal = self.signals.next() => Some(self.note_signal(signal)),
                news = self.membership.next() => self.note_news(news),
                () = at(kill_at) => {
                    self.current.kill_at = None;
                    Some(Event::GraceOver)
                }
                Ok(()) = self.reasons.changed() => {
                    self.say_reason_at = Some(Instant::now() + QUIET);
                    None
                }
                () = at(redraw_at) => None,
                () = at(say_at) => {
                    self.say_reason();
                    None
                }
            };
            if let Some(event) = event {
                return event;
            }
        }
    }

    /// While it is waited for what workers left, only signals are heard; news of other nodes can wait until then.
    async fn next_while_clearing(&mut self, clearing: Clearing) -> Event {
        let Agent { workers, signals, current, .. } = self;
        tokio::select! {
            biased;
            signal = signals.next() => self.note_signal(signal),
            left = clear(workers, current.outputs.as_mut(), clearing) => {
                self.current.clearing = None;
                left.iter().for_each(|left| self.say(left));
                self.current.failures = workers::failures(self);
                Event::Cleared
            }
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Join => self.membership.tell(Command::Join),
            Action::Start => self.start(),
            Action::Stop(signal) => self.stop(signal),
            Action::Kill => {
                self.current.kill_at = None;
                self.current.sent.push(Signal::KILL.as_raw());
                self.workers.kill();
            }
            Action::AskToReform(reason) => self.membership.tell(Command::AskToReform(reason)),
            Action::Announce(restart) => self.announce(&restart),
            Action::Clear => {
                self.current.kill_at = None;
                self.current.clearing = Some(Clearing::Patiently);
            }
            Action::HurryUp => {
                self.say("not waiting for what the workers left behind");
                self.current.clearing = Some(Clearing::InHaste);
            }
            Action::AwaitOthers => self.membership.tell(Command::AwaitOthers),
            Action::CloseJob => self.close_job(),
            Action::Leave => self.membership.tell(Command::Leave("it was asked to end".to_owned())),
            // The caller's.
            Action::Finish(_) => {}
        }
    }

    fn start(&mut self) {
        let attempt = self.current.attempt.map_or(0, |attempt| attempt + 1);
        let formed = self.current.formed.take();
        self.current = Current { attempt: Some(attempt), formed, ..Current::default() };
        if let Err(failure) = workers::start_all(self, attempt) {
            self.pending = Some(Event::NotStarted { started: failure.started, why: failure.why });
        }
    }

    fn stop(&mut self, signal: i32) {
        let signal = Signal::from_named_raw(signal).unwrap_or(Signal::TERM);
        if self.current.sent.is_empty() {
            self.current.ended_before = self.workers.ended();
        }
        self.current.sent.push(signal.as_raw());
        self.workers.end(signal);
        // A time too long for the clock is as good as a year.
        let year = Duration::from_secs(365 * 24 * 3600);
        let now = Instant::now();
        self.current.kill_at = Some(now.checked_add(self.config.stop_timeout).unwrap_or(now + year));
    }

    fn announce(&self, restart: &Restart) {
        let Restart { reason, counted, left } = restart;
        let what = if *counted { format!("{left} restarts left") } else { "not counted as a restart".to_owned() };
        self.say(&format!("{reason}: stopping all workers of this node to start them anew ({what})"));
        let attempt = self.current.attempt.unwrap_or(0);
        self.events.emit(&AgentEvent::Restarting { attempt, restarts_left: *left, reason: reason.clone() });
    }

    fn close_job(&self) {
        let root = self.current.failures.first().map(|failure| workers::root_cause(failure, &self.hostname));
        let reason = match &root {
            Some(_) => "its workers failed and no restart is left".to_owned(),
            None => "it failed".to_owned(),
        };
        self.membership.tell(Command::Close { reason, root_cause: root });
    }

    fn note_death(&mut self, died: Died) -> Event {
        let (worker, exit) = (died.index, died.exit.clone());
        let stopped = self.machine.is_stopping() && self.current.stopped(worker, &exit);
        let rank = self.rank_of(worker);
        let attempt = self.current.attempt.unwrap_or(0);
        let code = exit.torch_code();
        self.events.emit(&AgentEvent::Ended { attempt, rank, local_rank: worker, pid: died.pid, code, stopped });
        if !stopped && !exit.success() {
            self.say(&format!("rank {rank} (local rank {worker}, pid {}) ended with {exit}", died.pid));
        }
        self.current.deaths.push(Death { died, stopped });
        Event::Died { worker, exit }
    }

    fn note_signal(&self, signal: i32) -> Event {
        self.events.emit(&AgentEvent::Signalled { signal });
        self.say(&format!("{} came: ending the workers", signal_name(signal)));
        Event::Signalled(signal)
    }

    fn note_news(&mut self, news: News) -> Option<Event> {
        match news {
            News::Formed(formed) => {
                let (round, master) = *formed;
                let workers = round.me().node.local_world_size;
                if let Some(disconnect_monitor) = &self.disconnect_monitor {
                    disconnect_monitor.expect(round.ids.iter().copied());
                }
                self.current.formed = Some((round, master));
                Some(Event::Formed { workers })
            }
            News::NotFormed(error) => Some(Event::NotFormed(self.diagnostic_input.not_formed(*error))),
            News::NoMaster(why) => Some(Event::NotFormed(why)),
            News::Changed(change) => note_change(&change),
            News::Barrier(barrier) => Some(self.note_barrier(barrier)),
        }
    }

    fn note_barrier(&self, barrier: Barrier) -> Event {
        match barrier {
            Barrier::AllDone => Event::BarrierPassed,
            Barrier::Changed(change) => match note_change(&change) {
                None => Event::BarrierPassed,
                Some(_) => Event::BarrierBroken(format!("the workers of this node had succeeded, but {change}")),
            },
            // As in torch (`_exit_barrier` of elastic/agent/server/api.py): this node's workers have succeeded all the same.
            Barrier::TimedOut(nodes) => {
                let nodes: Vec<String> = nodes.iter().map(ToString::to_string).collect();
                self.say(&format!(
                    "the workers of this node have succeeded; those of {} have not ended in time (--exit-barrier-timeout)",
                    nodes.join(", ")
                ));
                Event::BarrierPassed
            }
        }
    }

    /// Events of the round that this attempt's workers take part in.
    pub(super) fn tell_formed(&self, attempt: u64) {
        if let Some((round, _)) = &self.current.formed {
            let (nodes, world_size) = (round.nodes, round.world_size);
            let formed =
                AgentEvent::Formed { round: round.number, attempt, group_rank: round.group_rank, nodes, world_size };
            self.events.emit(&formed);
            let (number, group_rank) = (round.number, round.group_rank);
            tracing::info!(
                "round {number}: {nodes} nodes, {world_size} ranks; this is node {group_rank}; attempt {attempt}"
            );
        }
    }

    /// The rank of this node's worker in the present round.
    pub(super) fn rank_of(&self, worker: usize) -> usize {
        let formed = self.current.formed.as_ref();
        formed.and_then(|(round, _)| round.ranks_of(worker)).map_or(worker, |ranks| ranks.rank)
    }

    /// Tells what has been waited for so long that one would like to know.
    fn say_reason(&mut self) {
        self.say_reason_at = None;
        if self.machine.is_waiting() {
            let reason = self.reasons.borrow_and_update().clone();
            self.say(&format!("waiting for other nodes at {}: {reason}", self.diagnostic_input.endpoint));
        }
    }

    /// Brings the status up to date; when to do so again.
    fn show_status(&mut self) -> Option<Instant> {
        let round = self.current.formed.as_ref().map(|(round, _)| round);
        let status = self.status.as_mut()?;
        Some(status.show(&self.machine, self.config.max_restarts, round))
    }

    /// A line of the agent itself.
    pub(super) fn say(&self, line: &str) {
        self.console.line(Stream::Stderr, format!("lockstep: {line}").as_bytes());
    }
}

/// Waits until nothing of the workers is left; what to say about it. Cancelled, it can begin again.
async fn clear(workers: &mut Workers, outputs: Option<&mut Outputs>, clearing: Clearing) -> Vec<String> {
    let limit = if clearing == Clearing::Patiently { CLEAR } else { HURRY };
    let left = workers.sweep(limit).await.left.into_iter();
    let mut said: Vec<String> = left
        .map(|stray| format!("{} (pid {}) that a worker left behind cannot be killed", stray.name, stray.pid))
        .collect();
    if let Some(outputs) = outputs {
        if clearing == Clearing::InHaste && timeout(HURRY, outputs.finish(HURRY)).await.is_err() {
            // Something still comes, and may for ever.
            outputs.finish(Duration::ZERO).await;
        }
        let failed = outputs.finish(limit).await.failed.into_iter();
        said.extend(failed.map(|(path, why)| format!("the log {} is not complete: {why}", path.display())));
    }
    said
}

/// Sleeps until then; for ever if there is no such time.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}

fn note_change(change: &Change) -> Option<Event> {
    match change {
        Change::AllDone => None,
        Change::Closed(closing) => Some(Event::Closed(closing.text())),
        Change::StoreLost(lost) => Some(Event::Closed(lost.to_string())),
        other => Some(Event::Reform(other.to_string())),
    }
}
