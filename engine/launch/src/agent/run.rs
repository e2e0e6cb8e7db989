//! The agent's event loop: waits for everything that can happen in one place, turns it into an event, and carries out
//! the actions that the state machine returns. The decisions are in [`super::state_machine`].

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use lockstep_contract::events::AgentEvent;
use lockstep_contract::snapshot_request::SAVE_AND_END;
use lockstep_process::{Died, Left, NoProgress, Signal, Workers};
use tokio::io::unix::AsyncFd;
use tokio::time::{sleep_until, timeout};

use super::batch_job::{Answer, BatchJob};
use super::display::LiveStatus;
use super::ending::{Clearing, Ending, clear, ends};
use super::judge::{Facts, Inquiry};
use super::meet::RendezvousWait;
use super::membership::{Command, Membership, News};
use super::signals::{SignalStream, pass_on};
use super::state_machine::{Action, Event, Outcome, Restart, StateMachine, has_saved};
use super::workers::{Context, Current, KernelSleep};
use crate::config::KERNEL_SLEEP;
use crate::rendezvous::{Barrier, Change};
use crate::verdict::{Standing, on_sleeper};

/// Everything that the loop works on.
pub(super) struct Agent<'a> {
    context: Context<'a>,
    machine: StateMachine,
    workers: Workers,
    /// Readable when `workers` have something to report.
    ready: AsyncFd<OwnedFd>,
    current: Current,
    ending: Ending,
    facts: Facts,
    membership: Membership,
    wait: RendezvousWait,
    /// The scheduler's job, if any.
    batch: BatchJob,
    signals: SignalStream,
    /// Only on a terminal.
    status: Option<LiveStatus>,
    kernel_sleep: KernelSleep,
    /// Events that are already known and handled next.
    pending: VecDeque<Event>,
    /// Failures that may follow from the loss of a node.
    held: Held,
}

/// Workers' failures that are kept back until it is known whether a node is lost, since a restart that a change of members causes does not
/// count against `--max-restarts`. The workers often notice the loss before the agents do.
#[derive(Default)]
struct Held {
    failures: Vec<Event>,
    /// When the loss would be known.
    until: Option<Instant>,
}

/// The agent when the job has ended on its node.
pub(super) struct Finished<'a> {
    pub(super) outcome: Outcome,
    pub(super) facts: Facts,
    pub(super) context: Context<'a>,
    pub(super) membership: Membership,
    pub(super) signals: SignalStream,
    pub(super) workers: Workers,
    pub(super) status: Option<LiveStatus>,
}

impl<'a> Agent<'a> {
    /// `workers` come with a descriptor that is readable when they have something to report.
    pub(super) fn new(
        context: Context<'a>,
        (workers, ready): (Workers, AsyncFd<OwnedFd>),
        membership: Membership,
        batch: BatchJob,
        signals: SignalStream,
        wait: RendezvousWait,
        status: Option<LiveStatus>,
    ) -> Self {
        let config = context.config;
        Agent {
            machine: StateMachine::new(config.max_restarts),
            kernel_sleep: KernelSleep::new(config.kernel_sleep_limit, config.monitor_interval),
            current: Current::default(),
            ending: Ending::default(),
            facts: Facts::default(),
            pending: VecDeque::new(),
            held: Held::default(),
            context,
            workers,
            ready,
            membership,
            wait,
            batch,
            signals,
            status,
        }
    }

    /// Runs the job on this node until it ends.
    pub(super) async fn run(mut self) -> Finished<'a> {
        let mut actions = self.machine.begin();
        let outcome = 'job: loop {
            for action in actions {
                if let Action::Finish(outcome) = action {
                    break 'job outcome;
                }
                self.act(action);
            }
            let event = self.next().await;
            actions = self.machine.handle(event);
        };
        self.await_cause().await;
        let Agent { facts, context, membership, signals, workers, status, .. } = self;
        Finished { outcome, facts, context, membership, signals, workers, status }
    }

    fn say(&self, line: &str) {
        self.context.say(line);
    }

    async fn next(&mut self) -> Event {
        loop {
            if let Some(event) = self.pending.pop_front() {
                self.look_into_hang(&event).await;
                return event;
            }
            if let Some(signal) = self.signals.take_held() {
                match self.note_signal(signal) {
                    Some(event) => return event,
                    None => continue,
                }
            }
            if let Some(clearing) = self.ending.clearing {
                match self.next_while_clearing(clearing).await {
                    Some(event) => return event,
                    None => continue,
                }
            }
            let is_first = self.current.attempt.is_none();
            let (kill_at, say_at) = (self.ending.kill_at, self.wait.say_at);
            let (ask_grace_at, limit_at) = (self.ending.ask_grace_at, self.limit_at());
            let (redraw_at, verdict_at) = (self.show_status(), self.facts.verdict_at);
            let held_until = self.held.until;
            let look_at = if self.machine.is_running() { self.kernel_sleep.due(Instant::now()) } else { None };
            let event = tokio::select! {
                biased;
                died = next_death(&mut self.workers, &self.ready) => Some(match died {
                    Ok(died) => self.note_death(died),
                    Err(error) => Event::Closed(self.facts.own_failure(format!("cannot watch the workers: {error}"))),
                }),
                signal = self.signals.next() => self.note_signal(signal),
                news = self.membership.next() => self.note_news(news),
                () = at(kill_at) => {
                    self.ending.kill_at = None;
                    Some(Event::GraceOver)
                }
                line = self.wait.changed(is_first) => {
                    line.iter().for_each(|line| self.say(line));
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
                () = at(limit_at) => self.batch.note_limit(&self.context, &self.workers),
                () = at(verdict_at) => {
                    self.say_provisional();
                    None
                }
                () = at(look_at) => self.look_for_sleepers(),
                () = at(held_until) => {
                    self.release();
                    None
                }
                () = at(redraw_at) => None,
                () = at(say_at) => {
                    self.say_reason(is_first);
                    None
                }
            };
            let Some(event) = event else { continue };
            if self.keeps_back(&event).await {
                self.held.until.get_or_insert_with(|| Instant::now() + self.membership.lease);
                self.held.failures.push(event);
                continue;
            }
            if matches!(event, Event::Reform(_)) {
                self.facts.verdict_at = None; // the job goes on
            }
            // What was kept back comes after the news that explain it.
            self.release();
            self.look_into_hang(&event).await;
            return event;
        }
    }

    /// Returns true for the failure of a worker that has lost a rank, in a job of several nodes.
    async fn keeps_back(&mut self, event: &Event) -> bool {
        let Event::Died { exit, .. } = event else { return false };
        let several = self.current.formed.as_ref().is_some_and(|(round, _)| round.nodes > 1);
        let failed = !exit.success() && !has_saved(exit.torch_code());
        failed && several && self.machine.is_running() && self.inquiry().has_lost_a_peer().await
    }

    /// Handles what was kept back next.
    fn release(&mut self) {
        let Held { failures, .. } = std::mem::take(&mut self.held);
        self.pending.extend(failures);
    }

    /// While leftovers of the workers are awaited, only signals are handled; news of other nodes can wait.
    async fn next_while_clearing(&mut self, clearing: Clearing) -> Option<Event> {
        if clearing == Clearing::AfterGrace {
            let left = self.workers.end_left(self.ending.last_request());
            if !left.is_empty() {
                return self.next_in_grace(left).await;
            }
            self.ending.clearing = Some(Clearing::Patiently);
        }
        (self.ending.kill_at, self.ending.ask_grace_at) = (None, None);
        let verdict_at = self.facts.verdict_at;
        tokio::select! {
            biased;
            signal = self.signals.next() => self.note_signal(signal),
            () = at(verdict_at) => {
                self.say_provisional();
                None
            }
            left = clear(&mut self.workers, self.current.outputs.as_mut(), clearing) => {
                (self.ending.clearing, self.facts.verdict_at) = (None, None);
                left.iter().for_each(|left| self.say(left));
                self.facts.judge(&self.context, &self.current, self.machine.restarts_left());
                self.facts.record_verdict(&self.context);
                Some(Event::Cleared)
            }
        }
    }

    /// Waits until these programs have ended, or the grace is over.
    async fn next_in_grace(&mut self, left: Vec<Left>) -> Option<Event> {
        if let Some(line) = self.ending.describe_left(&left) {
            self.begin_grace();
            self.say(&line);
        }
        let (kill_at, ask_grace_at, verdict_at) =
            (self.ending.kill_at, self.ending.ask_grace_at, self.facts.verdict_at);
        tokio::select! {
            biased;
            signal = self.signals.next() => return self.note_signal(signal),
            () = at(kill_at) => {
                self.say("the grace of what the workers left behind is over");
                self.ending.clearing = Some(Clearing::Patiently);
            }
            () = ends(left) => self.ending.clearing = Some(Clearing::Patiently),
            answer = self.batch.next() => self.note_answer(answer),
            () = at(ask_grace_at) => self.ask_for_grace(),
            () = at(verdict_at) => self.say_provisional(),
        }
        None
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Join => self.membership.send(Command::Join),
            Action::Start => self.start(),
            Action::Stop(signal) => {
                let signal = Signal::from_named_raw(signal).unwrap_or(Signal::TERM);
                self.ending.ask(&mut self.workers, signal);
                self.begin_grace();
            }
            Action::AskToSave(signal) => {
                pass_on(&self.context, &self.workers, &self.workers.alive(), Signal::USR2);
                // A signal that orders the end limits the time.
                if signal != SAVE_AND_END {
                    self.begin_grace();
                }
            }
            Action::AwaitEnd => self.begin_grace(),
            Action::Kill => {
                self.facts.look_again();
                self.ending.kill(&mut self.workers, self.context.config.shutdown_timeout);
            }
            Action::Abandon(stuck) => {
                stuck.into_iter().for_each(|worker| self.say(&self.current.describe_stuck(worker)))
            }
            Action::AskToReform(reason) => self.membership.send(Command::AskToReform(reason)),
            Action::Announce(restart) => self.announce(&restart),
            Action::Clear => self.ending.begin_clearing(),
            Action::HurryUp => {
                self.say("not waiting for what the workers left behind");
                self.ending.clearing = Some(Clearing::Quickly);
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
        (self.ending, self.facts) = (Ending::default(), Facts::begin());
        let restarts = self.context.config.max_restarts - self.machine.restarts_left();
        if let Err(failure) = self.current.start_all(&self.context, &mut self.workers, restarts) {
            let why = self.facts.own_failure(failure.why);
            self.pending.push_back(Event::NotStarted { started: failure.started, why });
        }
    }

    /// Begins the grace period, unless one has begun. The scheduler may give more time if its SIGTERM asked for the end.
    fn begin_grace(&mut self) {
        let config = self.context.config;
        let asks = config.shutdown_timeout_is_default && self.signals.asked_by(Signal::TERM);
        let ask_at = self.batch.ask_grace_at(Instant::now()).filter(|_| asks);
        self.ending.begin_grace(config.shutdown_timeout, ask_at);
    }

    /// Asks the scheduler, in the middle of the grace period, whether it gives more time.
    fn ask_for_grace(&mut self) {
        self.ending.ask_grace_at = None;
        self.batch.ask_for_grace();
    }

    fn note_answer(&mut self, answer: Answer) {
        match answer {
            Answer::State(state, from) => self.batch.note_state(&self.context, &state, from),
            Answer::Grace(grace, from) => {
                if let Some(line) = self.ending.prolong_grace(grace, &from) {
                    self.say(&line);
                }
            }
        }
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
        let root = self.facts.root_cause(&self.context.hostname);
        let reason = match &root {
            Some(_) => "its workers failed and no restart is left".to_owned(),
            None => "it failed".to_owned(),
        };
        let patience = self.facts.patience(&self.context);
        self.membership.send(Command::Close { reason, root_cause: root, patience });
    }

    /// If the failure of this node's workers is a consequence: waits for the verdict of the node that has the cause.
    async fn await_cause(&mut self) {
        let patience = self.facts.patience(&self.context);
        if patience > Duration::ZERO
            && let Ok(News::Changed(change)) = timeout(patience, self.membership.next()).await
            && let Change::Closed(closing) = &*change
        {
            let before = self.facts.verdict.clone();
            self.facts.note_closing(closing);
            self.facts.decide();
            if self.facts.verdict != before {
                self.facts.record_verdict(&self.context);
            }
        }
    }

    fn note_signal(&mut self, signal: i32) -> Option<Event> {
        self.signals.note(signal, &self.context, &self.machine, &self.workers)
    }

    fn note_death(&mut self, died: Died) -> Event {
        let (worker, exit) = (died.index, died.exit.clone());
        let stopped = has_saved(exit.torch_code()) || self.machine.is_stopping() && self.ending.stopped(worker, &exit);
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
            self.facts.look_at_living(&self.current);
            if self.machine.restarts_left() == 0 {
                self.facts.expect_verdict();
            }
        }
        Event::Died { worker, exit }
    }

    fn say_provisional(&mut self) {
        let verdict = self.facts.provisional(&self.context, &self.current);
        self.facts.say_provisional(&self.context, verdict);
    }

    /// After a failure: takes the workers' stacks if one of them has waited in vain for another.
    async fn look_into_hang(&mut self, event: &Event) {
        if !self.machine.is_running() {
            return;
        }
        match event {
            // Only a report that no restart follows has stacks.
            Event::Died { exit, .. } if !exit.success() && self.machine.restarts_left() == 0 => {
                self.inquiry().look_into_hang().await;
            }
            Event::Closed(_) => self.inquiry().look_into_hang_of_another().await,
            _ => {}
        }
    }

    fn inquiry(&mut self) -> Inquiry<'_> {
        Inquiry {
            context: &self.context,
            current: &self.current,
            facts: &mut self.facts,
            alive: self.workers.alive(),
            signals: &mut self.signals,
        }
    }

    /// Looks for a worker that has slept in the kernel for too long. It ends the job: it holds a device or a file that a new worker would
    /// need.
    fn look_for_sleepers(&mut self) -> Option<Event> {
        let ((worker, pid), lasted) = self.kernel_sleep.look_at(self.current.with_pids(self.workers.alive()))?;
        let rank = self.current.rank_of(worker);
        let standing = Standing { rank, pid, at: NoProgress::of(pid as i32)? };
        self.facts.asleep = Some(on_sleeper(&standing, lasted, &self.context.hostname));
        let lasted = lasted.as_secs_f64();
        Some(Event::Closed(format!(
            "rank {rank} (local rank {worker}, pid {pid}) has slept in the kernel for {lasted:.1} s, longer than {KERNEL_SLEEP} allows"
        )))
    }

    /// When something about the time limit is due. Only the first agent handles the time limit: a request to its workers reaches
    /// all ranks.
    fn limit_at(&self) -> Option<Instant> {
        let is_first = self.current.formed.as_ref().is_some_and(|(round, _)| round.group_rank() == 0);
        self.batch.limit_at().filter(|_| is_first && self.machine.is_running())
    }

    fn note_news(&mut self, news: News) -> Option<Event> {
        match news {
            News::Formed(formed) => {
                let (round, master) = *formed;
                let workers = round.me.local_world_size;
                self.current.formed = Some((round, master));
                Some(Event::Formed { workers })
            }
            News::NotFormed(error) => Some(Event::NotFormed(self.facts.failed(self.wait.not_formed(*error)))),
            News::NoMaster(why) => Some(Event::NotFormed(self.facts.own_failure(why))),
            News::Changed(change) => {
                if let Change::Closed(closing) = &*change {
                    self.facts.note_closing(closing);
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

    /// Prints what the rendezvous has been waiting for.
    fn say_reason(&mut self, is_first: bool) {
        self.wait.say_at = None;
        if self.machine.is_waiting() {
            // Before the first round, launchers of other nodes may just be late.
            let later = self.batch.if_one_stays_away().filter(|_| !is_first);
            let later = later.map(|what| format!("; {what}")).unwrap_or_default();
            let reason = self.wait.reason(is_first);
            self.say(&format!("{reason}{later}"));
        }
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

/// Sleeps until this time; for ever if it is `None`.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}
