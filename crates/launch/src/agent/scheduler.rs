//! What the agent does about the scheduler's job: the workers save before its time limit, and get the grace that it gives.

use std::time::{Duration, Instant, SystemTime};

use lockstep_contract::wish::SAVE_AND_END;
use lockstep_events::AgentEvent;
use lockstep_process::Signal;

use super::batch_job::Answer;
use super::state::Agent;
use super::state_machine::Event;
use super::time_limit::Due;
use crate::scheduler::ask;

/// How soon workers are asked again that could not save yet: some have just been started.
const RETRY: Duration = Duration::from_secs(1);

impl Agent<'_> {
    /// When something about the time limit is due. Only the first agent looks after it: its workers' wish reaches all ranks.
    pub(super) fn limit_at(&self) -> Option<Instant> {
        let is_first = self.current.formed.as_ref().is_some_and(|(round, _)| round.group_rank() == 0);
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
