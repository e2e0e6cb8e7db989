//! The agent's event loop: waits for everything that can happen in one place, turns it into an event, and carries out
//! the actions that the state machine returns. The decisions are in [`super::state_machine`].

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use lockstep_contract::events::AgentEvent;
use lockstep_process::{Died, KILL_LIMIT, Signal, Workers};
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::time::{sleep_until, timeout};

use super::batch_job::BatchJob;
use super::clearing::listen;
use super::display::LiveStatus;
use super::kernel_sleep::KernelSleep;
use super::meet::DiagnosticInput;
use super::membership::{Command, Membership, News};
use super::signals::SignalStream;
use super::state_machine::{Action, Event, Outcome, Restart, StateMachine, has_saved};
use super::workers::{Clearing, Context, Current};
use crate::rendezvous::{Barrier, Change, Place};

/// Everything that the loop needs.
pub(super) struct Agent<'a> {
    pub(super) context: Context<'a>,
    pub(super) machine: StateMachine,
    pub(super) workers: Workers,
    /// Readable when `workers` have something to report.
    pub(super) ready: AsyncFd<OwnedFd>,
    pub(super) membership: Membership,
    /// The scheduler's job, if any.
    pub(super) batch: BatchJob,
    pub(super) signals: SignalStream,
    /// What is known about the rendezvous endpoint, for error messages.
    pub(super) diagnostic_input: DiagnosticInput,
    /// Only on a terminal.
    pub(super) status: Option<LiveStatus>,
    /// What the rendezvous waits for, as text.
    pub(super) reasons: watch::Receiver<String>,
    pub(super) place: watch::Receiver<Place>,
    /// When the reason is printed, unless it has changed by then.
    pub(super) say_reason_at: Option<Instant>,
    pub(super) current: Current,
    pub(super) kernel_sleep: KernelSleep,
    /// An event that is already known and handled next.
    pub(super) pending: Option<Event>,
    /// Signals that came while stacks were read; they are handled after the death that was looked into.
    pub(super) held: VecDeque<i32>,
    /// The last signal that asked for the end, and when it came first.
    pub(super) asked: Option<(i32, Instant)>,
}

impl Agent<'_> {
    /// Prints a line of the agent itself.
    pub(super) fn say(&self, line: &str) {
        self.context.say(line);
    }
}

/// How long the rendezvous may wait for the same thing before the agent prints it.
const QUIET: Duration = Duration::from_secs(3);
/// The same where other machines cannot come: long enough for other agents of this one.
const SOON: Duration = Duration::from_secs(1);

impl Agent<'_> {
    /// Runs the job on this node until it ends.
    pub(super) async fn run(&mut self) -> Outcome {
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
            if let Some(signal) = self.held.pop_front() {
                match self.note_signal(signal) {
                    Some(event) => return event,
                    None => continue,
                }
            }
            if let Some(clearing) = self.current.clearing {
                match self.next_while_clearing(clearing).await {
                    Some(event) => return event,
                    None => continue,
                }
            }
            let (kill_at, say_at) = (self.current.kill_at, self.say_reason_at);
            let (ask_grace_at, limit_at) = (self.current.ask_grace_at, self.limit_at());
            let (redraw_at, verdict_at) = (self.show_status(), self.current.verdict_at);
            let look_at = self.look_at();
            let event = tokio::select! {
                biased;
                died = next_death(&mut self.workers, &self.ready) => Some(match died {
                    Ok(died) => self.note_death(died),
                    Err(error) => {
                        Event::Closed(self.current.facts.own_failure(format!("cannot watch the workers: {error}")))
                    }
                }),
                signal = self.signals.next() => self.note_signal(signal),
                news = self.membership.next() => self.note_news(news),
                () = at(kill_at) => {
                    self.current.kill_at = None;
                    Some(Event::GraceOver)
                }
                Ok(()) = self.place.changed() => {
                    self.note_place();
                    None
                }
                Ok(()) = self.reasons.changed() => {
                    let quiet = if self.only_here().is_some() { SOON } else { QUIET };
                    self.say_reason_at = Some(Instant::now() + quiet);
                    None
                }
                answer = self.batch.next() => {
                    self.note_answer(answer);
                    None
                }
                () = at(ask_grace_at) => {
                    self.ask_for_grace();
                    None
                }
                () = at(limit_at) => self.note_limit(),
                () = at(verdict_at) => {
                    self.say_provisional();
                    None
                }
                () = at(look_at) => self.look_for_sleepers(),
                () = at(redraw_at) => None,
                () = at(say_at) => {
                    self.say_reason();
                    None
                }
            };
            if let Some(event) = event {
                match &event {
                    Event::Died { exit, .. } if !exit.success() => self.look_into_hang().await,
                    Event::Closed(_) => self.look_into_hang_of_another().await,
                    _ => {}
                }
                return event;
            }
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Join => self.membership.send(Command::Join),
            Action::Start => self.start(),
            Action::Stop(signal) => self.stop(signal),
            Action::AskToSave(signal) => self.ask_to_save(signal),
            Action::AwaitEnd => self.limit_grace(),
            Action::Kill => {
                // A worker that is alive after that waits in the kernel, perhaps for ever.
                let death = KILL_LIMIT.max(self.context.config.shutdown_timeout);
                self.current.kill_at = Some(later(Instant::now(), death));
                self.current.ask_grace_at = None;
                self.current.look_again();
                self.current.sent.push(Signal::KILL.as_raw());
                self.workers.kill();
            }
            Action::Abandon(stuck) => {
                let stuck = stuck.into_iter().map(|worker| self.current.describe_stuck(worker));
                stuck.for_each(|line| self.say(&line));
            }
            Action::AskToReform(reason) => self.membership.send(Command::AskToReform(reason)),
            Action::Announce(restart) => self.announce(&restart),
            Action::Clear => self.begin_clearing(),
            Action::HurryUp => {
                self.say("not waiting for what the workers left behind");
                self.current.clearing = Some(Clearing::Quickly);
            }
            Action::AwaitOthers => self.membership.send(Command::AwaitOthers),
            Action::CloseJob => self.close_job(),
            Action::Leave => self.membership.send(Command::Leave("it was asked to end".to_owned())),
            // The caller handles this one.
            Action::Finish(_) => {}
        }
    }

    fn start(&mut self) {
        self.current = self.current.next();
        let restarts = self.context.config.max_restarts - self.machine.restarts_left();
        if let Err(failure) = self.current.start_all(&self.context, &mut self.workers, restarts) {
            let why = self.current.facts.own_failure(failure.why);
            self.pending = Some(Event::NotStarted { started: failure.started, why });
        }
    }

    fn stop(&mut self, signal: i32) {
        let signal = Signal::from_named_raw(signal).unwrap_or(Signal::TERM);
        if self.current.sent.is_empty() {
            self.current.ended_before = self.workers.ended();
        }
        self.current.sent.push(signal.as_raw());
        self.workers.end(signal);
        self.current.kill_at = None;
        self.limit_grace();
    }

    /// Begins the grace period, unless one has begun.
    pub(super) fn limit_grace(&mut self) {
        if self.current.kill_at.is_some() {
            return;
        }
        let (now, grace) = (Instant::now(), self.context.config.shutdown_timeout);
        self.current.grace_began = Some(now);
        self.current.kill_at = Some(later(now, grace));
        let by_scheduler = self.asked.is_some_and(|(signal, _)| signal == Signal::TERM.as_raw());
        let asks = by_scheduler && self.context.config.shutdown_timeout_is_default;
        self.current.ask_grace_at = self.batch.ask_grace_at(now).filter(|_| asks);
    }

    fn announce(&self, restart: &Restart) {
        let Restart { reason, counted, left } = restart;
        let what = match counted {
            true => format!("{} left", lockstep_contract::counted(*left, "restart")),
            false => "not counted as a restart".to_owned(),
        };
        self.say(&format!("{reason}: stopping all workers of this node to restart them ({what})"));
        let attempt = self.current.attempt.unwrap_or(0);
        self.context.events.emit(&AgentEvent::Restarting { attempt, restarts_left: *left, reason: reason.clone() });
    }

    fn close_job(&self) {
        let root = self.current.root_cause(&self.context.hostname);
        let reason = match &root {
            Some(_) => "its workers failed and no restart is left".to_owned(),
            None => "it failed".to_owned(),
        };
        let patience = self.current.patience(&self.context);
        self.membership.send(Command::Close { reason, root_cause: root, patience });
    }

    /// If the failure of this node's workers is a consequence: waits for the verdict of the node that has the cause.
    pub(super) async fn await_cause(&mut self) {
        let patience = self.current.patience(&self.context);
        if patience > Duration::ZERO
            && let Ok(News::Changed(change)) = timeout(patience, self.membership.next()).await
            && let Change::Closed(closing) = &*change
        {
            let before = self.current.facts.verdict.clone();
            self.current.facts.note_closing(closing);
            self.current.decide();
            if self.current.facts.verdict != before {
                self.current.record_verdict(&self.context);
            }
        }
    }

    fn note_death(&mut self, died: Died) -> Event {
        let (worker, exit) = (died.index, died.exit.clone());
        let stopped = has_saved(exit.torch_code()) || self.machine.is_stopping() && self.current.stopped(worker, &exit);
        let rank = self.current.rank_of(worker);
        let attempt = self.current.attempt.unwrap_or(0);
        let code = exit.torch_code();
        self.context.events.emit(&AgentEvent::Ended {
            attempt,
            rank,
            local_rank: worker,
            pid: died.pid,
            code,
            stopped,
        });
        if !stopped && !exit.success() {
            self.say(&format!("rank {rank} (local rank {worker}, pid {}) ended with {exit}", died.pid));
        }
        let death = self.current.death(died, stopped);
        self.current.deaths.push(death);
        if !stopped && !exit.success() {
            self.current.look_at_living();
            self.expect_verdict();
        }
        Event::Died { worker, exit }
    }

    fn note_news(&mut self, news: News) -> Option<Event> {
        match news {
            News::Formed(formed) => {
                let (round, master) = *formed;
                let workers = round.me.local_world_size;
                self.current.formed = Some((round, master));
                Some(Event::Formed { workers })
            }
            News::NotFormed(error) => {
                let failure = self.diagnostic_input.not_formed(*error);
                Some(Event::NotFormed(self.current.facts.failed(failure)))
            }
            News::NoMaster(why) => Some(Event::NotFormed(self.current.facts.own_failure(why))),
            News::Changed(change) => {
                if let Change::Closed(closing) = &*change {
                    self.current.facts.note_closing(closing);
                }
                note_change(&change)
            }
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

    /// The rendezvous goes on elsewhere: what this agent prints names that place.
    fn note_place(&mut self) {
        let Place { address, succeeds } = self.place.borrow_and_update().clone();
        if let Some(lost) = succeeds {
            self.say(&format!("{lost} was lost; this agent hosts the rendezvous now, at {address}"));
        }
        if let Ok(endpoint) = address.parse() {
            self.diagnostic_input.endpoint = endpoint;
        }
    }

    /// Prints what the rendezvous has been waiting for.
    fn say_reason(&mut self) {
        self.say_reason_at = None;
        if self.machine.is_waiting() {
            let reason = self.reasons.borrow_and_update().clone();
            let only_here = self.only_here().map(|why| format!("; {why}")).unwrap_or_default();
            // Before the first round, launchers of other nodes may just be late.
            let later = self.batch.if_one_stays_away().filter(|_| self.current.attempt.is_some());
            let later = later.map(|what| format!("; {what}")).unwrap_or_default();
            let endpoint = &self.diagnostic_input.endpoint;
            self.say(&format!("waiting for other nodes at {endpoint}: {reason}{only_here}{later}"));
        }
    }

    /// Why nodes of other machines cannot come to the first round; `None` if they can.
    fn only_here(&self) -> Option<String> {
        self.diagnostic_input.only_here().filter(|_| self.current.attempt.is_none())
    }

    /// Updates the status line; returns when to do so again.
    fn show_status(&mut self) -> Option<Instant> {
        let round = self.current.formed.as_ref().map(|(round, _)| round);
        let status = self.status.as_mut()?;
        Some(status.show(&self.machine, self.context.config.max_restarts, round))
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

/// Notifies the runtime when `workers` have something to report.
///
/// # Errors
/// The system's error.
pub(super) fn ready(workers: &Workers) -> io::Result<AsyncFd<OwnedFd>> {
    listen(workers.as_fd().try_clone_to_owned()?)
}

/// The next death. Cancel safe. Waits for ever while no worker is alive.
async fn next_death(workers: &mut Workers, ready: &AsyncFd<OwnedFd>) -> io::Result<Died> {
    loop {
        let mut guard = ready.readable().await?;
        if let Some(died) = workers.next(Some(std::time::Instant::now()))? {
            return Ok(died);
        }
        guard.clear_ready();
    }
}

/// A duration that the clock cannot represent counts as a year.
fn later(now: Instant, duration: Duration) -> Instant {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    now.checked_add(duration).unwrap_or(now + YEAR)
}

/// Sleeps until this time; for ever if it is `None`.
pub(super) async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}
