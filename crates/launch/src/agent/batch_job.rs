//! The scheduler's job in which this agent runs: its time limit, the grace that it gives, and how often it was started before.
//!
//! The decisions on the time limit are in [`super::time_limit`].

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lockstep_contract::scheduler::{Allocation, JobState, Read, restarts};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::requeue;
use super::time_limit::TimeLimit;
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

/// What the agent knows of the scheduler's job, and the answers that it waits for.
pub(super) struct BatchJob {
    job: Option<Allocation>,
    pub(super) limit: TimeLimit,
    /// When this agent began, in seconds since the Unix epoch.
    began: f64,
    /// The folder of events.
    folder: Option<PathBuf>,
    answers: UnboundedReceiver<Answer>,
    pub(super) sender: UnboundedSender<Answer>,
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

    pub(super) fn ask_for_grace(&self) {
        let Some(question) = self.job.as_ref().and_then(|job| job.ask_for_grace(&Read::here())) else { return };
        let (sender, from) = (self.sender.clone(), question.words[0].clone());
        // The agent may have ended.
        ask(question, move |grace| drop(sender.send(Answer::Grace(grace, from))));
    }
}
