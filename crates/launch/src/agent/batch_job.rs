//! The scheduler's job in which this agent runs: its time limit, the grace that it gives, and how often it was started before.
//!
//! The decisions on the time limit are in [`super::time_limit`].

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lockstep_contract::scheduler::{Allocation, JobState, Read, restarts};
use lockstep_contract::wish::SAVE_AND_END;
use lockstep_events::AgentEvent;
use lockstep_process::Signal;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::requeue;
use super::run::Agent;
use super::state_machine::Event;
use super::time_limit::{Due, TimeLimit};
use super::workers::Context;
use crate::config::Config;
use crate::scheduler::ask;

/// An answer of the scheduler, with the name of the program that gave it.
pub(super) enum Answer {
    State(JobState, String),
    Grace(Duration, String),
}

/// How long workers may take to end before the scheduler is asked whether they may take longer.
const ASK_GRACE_AFTER: Duration = Duration::from_secs(5);

/// How soon workers are asked again that could not save yet: some have just been started.
const RETRY: Duration = Duration::from_secs(1);

/// What the agent knows of the scheduler's job, and the answers that it waits for.
pub(super) struct BatchJob {
    job: Option<Allocation>,
    limit: TimeLimit,
    /// When this agent began, in seconds since the Unix epoch.
    began: f64,
    /// The folder of events.
    folder: Option<PathBuf>,
    answers: UnboundedReceiver<Answer>,
    sender: UnboundedSender<Answer>,
}

impl BatchJob {
    pub(super) fn new(config: &Config, job: Option<Allocation>, folder: Option<PathBuf>) -> Self {
        let (sender, answers) = unbounded_channel();
        let flags = (config.time_limit, config.save_before_limit);
        let limit = TimeLimit::new(flags, job.as_ref(), &Read::here(), (Instant::now(), SystemTime::now()));
        let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        BatchJob { job, limit, began, folder, answers, sender }
    }

    /// The next answer. Cancelling loses none; it waits for ever if nothing was asked.
    pub(super) async fn next(&mut self) -> Answer {
        match self.answers.recv().await {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }

    /// Reports how often the job was started before, and why, if it was.
    pub(super) fn announce_requeue(&self, context: &Context<'_>, restarts: Option<u32>) {
        if let (Some(job), Some(count @ 1..)) = (&self.job, restarts) {
            requeue::announce(context, self.folder.as_deref(), &job.title(), count, self.began);
        }
    }

    /// The same, where a variable says so.
    pub(super) fn announce_start(&self, context: &Context<'_>) {
        self.announce_requeue(context, restarts(&Read::here()));
    }

    /// When the scheduler is asked for its grace, if workers that SIGTERM has asked to end take long. The answer costs it a request.
    pub(super) fn ask_grace_at(&self, now: Instant) -> Option<Instant> {
        // Such a scheduler kills the job's processes some time after SIGTERM.
        self.job.as_ref().filter(|job| job.sends_sigterm_at_the_end()).map(|_| now + ASK_GRACE_AFTER)
    }

    fn ask_for_grace(&self) {
        let Some(question) = self.job.as_ref().and_then(|job| job.ask_for_grace(&Read::here())) else { return };
        let (sender, from) = (self.sender.clone(), question.words[0].clone());
        // The agent may have ended.
        ask(question, move |grace| drop(sender.send(Answer::Grace(grace, from))));
    }
}

impl Agent<'_> {
    /// When something about the time limit is due. Only the first agent looks after it: its workers' wish reaches all ranks.
    pub(super) fn limit_at(&self) -> Option<Instant> {
        let is_first = self.current.formed.as_ref().is_some_and(|(round, _)| round.group_rank == 0);
        self.batch.limit.at().filter(|_| is_first && self.machine.is_running())
    }

    pub(super) fn note_limit(&mut self) -> Option<Event> {
        let now = Instant::now();
        match self.batch.limit.due(now)? {
            Due::Ask(question) => {
                let (sender, from) = (self.batch.sender.clone(), question.words[0].clone());
                ask(question, move |state| drop(sender.send(Answer::State(state, from))));
                None
            }
            Due::Save { end, from } => self.save_before_limit(now, end, from),
        }
    }

    fn save_before_limit(&mut self, now: Instant, end: Instant, from: String) -> Option<Event> {
        let left = end.saturating_duration_since(now).as_secs_f64();
        let ends = format!("the job ends in {left:.0} s ({from})");
        if !self.all_can_save() {
            if self.batch.limit.retry(now + RETRY, end, from) {
                self.say(&format!("{ends}, and not all workers can save a snapshot on SIGUSR2 yet"));
            }
            return None;
        }
        self.context.events.emit(&AgentEvent::TimeLimit { seconds_left: left, source: from });
        self.say(&format!("{ends}: asking the workers to save a snapshot and to end"));
        Some(Event::SaveAndEnd(SAVE_AND_END))
    }

    /// In the middle of the grace period: the scheduler may give more.
    pub(super) fn ask_for_grace(&mut self) {
        self.current.ask_grace_at = None;
        self.batch.ask_for_grace();
    }

    pub(super) fn note_answer(&mut self, answer: Answer) {
        match answer {
            Answer::State(state, from) => {
                self.batch.announce_requeue(&self.context, state.restarts);
                self.batch.limit.answered(state.end, from, (Instant::now(), SystemTime::now()));
            }
            Answer::Grace(grace, from) => self.prolong_grace(grace, &from),
        }
    }

    fn prolong_grace(&mut self, grace: Duration, from: &str) {
        let is_killed = self.current.sent.contains(&Signal::KILL.as_raw());
        let (Some(began), Some(kill_at)) = (self.current.grace_began, self.current.kill_at) else { return };
        // The last tenth is for the report.
        let until = began + grace * 9 / 10;
        if !is_killed && until > kill_at {
            self.current.kill_at = Some(until);
            let seconds = (until - began).as_secs_f64();
            self.say(&format!(
                "the workers have {seconds:.0} s to end, as the scheduler gives {} s ({from})",
                grace.as_secs()
            ));
        }
    }
}
