//! The scheduler's job in which this agent runs. The workers save before its time limit and get the scheduler's grace period. If the
//! job was started again, the agent reports why.
//!
//! The decisions on the time limit are in [`super::time_limit`].

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lockstep_contract::events::{AgentEvent, AgentLog, read_agents};
use lockstep_contract::scheduler::{Allocation, JobState, Read, Scheduler, Started, restarts};
use lockstep_contract::snapshot_request::{SAVE_AND_END, SAVED};
use lockstep_process::{Workers, signal_name};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::signals::all_can_save;
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

/// How long workers may take to end before the agent asks the scheduler for more time.
const ASK_GRACE_AFTER: Duration = Duration::from_secs(5);
/// How soon workers that could not save yet are asked again: some may have just been started.
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

    /// The next answer. Cancel safe. Waits for ever if nothing was asked.
    pub(super) async fn next(&mut self) -> Answer {
        match self.answers.recv().await {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }

    /// Reports how often the job was started before, and why, if it was. One node's agent prints it for all.
    fn announce_requeue(&self, context: &Context<'_>, restarts: Option<u32>) {
        let (Some(job), Some(count @ 1..)) = (&self.job, restarts) else { return };
        let logs = self.folder.as_deref().and_then(|folder| read_agents(folder).ok()).unwrap_or_default();
        let reason = reason(&logs, count, self.began);
        if !matches!(job.started, Started::OnEachNode { node: Some((1.., _)) }) {
            context.say(&format!("start {} of {}: {reason}", u64::from(count) + 1, job.title()));
        }
        context.events.emit(&AgentEvent::Requeued { count, reason });
    }

    /// What to do if a node that was there does not come back: the scheduler starts no new agent on it within this start of the job.
    pub(super) fn if_one_stays_away(&self) -> Option<String> {
        let slurm = self.job.as_ref().filter(|job| job.scheduler == Scheduler::Slurm)?;
        let id = slurm.id.split('.').next().unwrap_or_default();
        Some(format!(
            "Slurm starts no new launcher on a node that has booted again, and may still count it as up: `scontrol requeue {id}` starts \
             the job again at once"
        ))
    }

    /// Does the same with the number that an environment variable gives, if there is one.
    pub(super) fn announce_start(&self, context: &Context<'_>) {
        self.announce_requeue(context, restarts(&Read::here()));
    }

    /// When to ask the scheduler for its grace period, if workers take long to end after SIGTERM. Not at once, because each question
    /// is a request to the scheduler.
    pub(super) fn ask_grace_at(&self, now: Instant) -> Option<Instant> {
        // Such a scheduler kills the job's processes some time after SIGTERM.
        self.job.as_ref().filter(|job| job.sends_sigterm_at_the_end()).map(|_| now + ASK_GRACE_AFTER)
    }

    /// Asks the scheduler, in the middle of the grace period, whether it gives more time.
    pub(super) fn ask_for_grace(&self) {
        let Some(question) = self.job.as_ref().and_then(|job| job.ask_for_grace(&Read::here())) else { return };
        let (sender, from) = (self.sender.clone(), question.words[0].clone());
        // The agent may have ended.
        ask(question, move |grace| drop(sender.send(Answer::Grace(grace, from))));
    }

    /// When something about the time limit is due.
    pub(super) fn limit_at(&self) -> Option<Instant> {
        self.limit.at()
    }

    /// Does what is due about the time limit: asks the scheduler for the end, or has the workers save and end.
    pub(super) fn note_limit(&mut self, context: &Context<'_>, workers: &Workers) -> Option<Event> {
        let now = Instant::now();
        let (end, from) = match self.limit.due(now)? {
            Due::Ask(question) => {
                let (sender, from) = (self.sender.clone(), question.words[0].clone());
                ask(question, move |state| drop(sender.send(Answer::State(state, from))));
                return None;
            }
            Due::Save { end, from } => (end, from),
        };
        let left = end.saturating_duration_since(now).as_secs_f64();
        let ends = format!("the job ends in {left:.0} s ({from})");
        if !all_can_save(workers) {
            if self.limit.retry(now + RETRY, end, from) {
                context.say(&format!("{ends}, and not all workers can save a snapshot on SIGUSR2 yet"));
            }
            return None;
        }
        context.events.emit(&AgentEvent::TimeLimit { seconds_left: left, source: from });
        context.say(&format!("{ends}: asking the workers to save a snapshot and to end"));
        Some(Event::SaveAndEnd(SAVE_AND_END))
    }

    /// The scheduler, by its program `from`, has described the job.
    pub(super) fn note_state(&mut self, context: &Context<'_>, state: &JobState, from: String) {
        self.announce_requeue(context, state.restarts);
        self.limit.answered(state.end, from, (Instant::now(), SystemTime::now()));
    }
}

const NO_EVENTS: &str = "why the former start ended is not known here, since it left no events: set LOCKSTEP_EVENTS to a folder that all nodes see";

/// Why the job was started for the `count` + 1st time. The events of this start are later than `began`, in seconds since the Unix epoch.
fn reason(logs: &BTreeMap<String, AgentLog>, count: u32, began: f64) -> String {
    let is_of_this_start = |log: &AgentLog| {
        let first = log.records.first().map(|record| &record.event);
        matches!(first, Some(AgentEvent::Requeued { count: other, .. }) if *other == count)
            || log.records.last().is_none_or(|last| last.t >= began)
    };
    let former: Vec<&AgentLog> = logs.values().filter(|log| !is_of_this_start(log)).collect();
    let first = |log: &AgentLog| log.records.first().map_or(0.0, |record| record.t);
    let last = |log: &AgentLog| log.records.last().map_or(0.0, |record| record.t);
    let Some(latest) = former.iter().max_by(|one, other| last(one).total_cmp(&last(other))) else {
        return NO_EVENTS.to_owned();
    };
    // Agents of one start live at the same time.
    let mut silent = former.iter().filter(|log| last(log) >= first(latest) && code(log).is_none());
    match silent.next().and_then(|log| log.records.first()) {
        Some(record) => {
            format!("launcher {} of the former start was lost, or killed by the scheduler", record.node)
        }
        None => end(latest),
    }
}

/// The exit code of an agent that has ended by itself.
fn code(log: &AgentLog) -> Option<i32> {
    log.records.iter().rev().find_map(|record| match record.event {
        AgentEvent::Finished { code } => Some(code),
        _ => None,
    })
}

fn end(log: &AgentLog) -> String {
    let has = |wanted: fn(&AgentEvent) -> bool| log.records.iter().any(|record| wanted(&record.event));
    let signal = log.records.iter().rev().find_map(|record| match record.event {
        AgentEvent::Signalled { signal } => Some(signal_name(signal)),
        _ => None,
    });
    let saved = code(log) == Some(SAVED.into());
    match (saved, signal) {
        (true, _) if has(|event| matches!(event, AgentEvent::TimeLimit { .. })) => {
            "the former start saved a snapshot before its time limit".to_owned()
        }
        (true, Some(signal)) => format!("the former start saved a snapshot and ended on {signal}"),
        (true, None) => "the former start saved a snapshot and ended".to_owned(),
        (false, Some(signal)) => format!("the former start was ended by {signal}"),
        (false, None) => format!("the former start ended with exit code {}", code(log).unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use lockstep_contract::events::AgentRecord;

    use super::*;

    fn log(node: &str, began: f64, events: &[AgentEvent]) -> (String, AgentLog) {
        let record = |(at, event): (usize, &AgentEvent)| AgentRecord {
            t: began + at as f64,
            node: node.into(),
            event: event.clone(),
        };
        (node.into(), AgentLog { records: events.iter().enumerate().map(record).collect(), torn: vec![] })
    }

    const FORMED: AgentEvent = AgentEvent::Formed { round: 0, attempt: 0, group_rank: 0, nodes: 2, world_size: 2 };

    fn ended(events: &[AgentEvent], code: i32) -> Vec<AgentEvent> {
        [&[FORMED], events, &[AgentEvent::Finished { code }]].concat()
    }

    #[test]
    fn names_the_end_of_the_former_start() {
        let limit = || AgentEvent::TimeLimit { seconds_left: 60.0, source: "squeue".into() };
        let signal = |signal| AgentEvent::Signalled { signal };
        let ends = [
            (ended(&[limit()], 75), "the former start saved a snapshot before its time limit"),
            (ended(&[signal(12)], 75), "the former start saved a snapshot and ended on SIGUSR2"),
            (ended(&[], 75), "the former start saved a snapshot and ended"),
            (ended(&[signal(15)], 1), "the former start was ended by SIGTERM"),
            (ended(&[], 1), "the former start ended with exit code 1"),
            (vec![FORMED], "launcher a of the former start was lost, or killed by the scheduler"),
        ];
        for (events, expected) in ends {
            assert_eq!(reason(&[log("a", 10.0, &events)].into(), 1, 100.0), expected);
        }
        assert_eq!(reason(&BTreeMap::new(), 1, 100.0), NO_EVENTS);
    }

    #[test]
    fn finds_the_launcher_that_was_lost_and_ignores_older_and_newer_starts() {
        let older = log("x", 1.0, &[FORMED]);
        let lost = log("b", 20.0, &[FORMED]);
        let others = log("a", 19.5, &ended(&[AgentEvent::Signalled { signal: 15 }], 1));
        let newer = log("c", 99.0, &[AgentEvent::Requeued { count: 2, reason: String::new() }]);
        let last = log("d", 101.0, &ended(&[], 3));
        let both = |logs: &[&(String, AgentLog)]| reason(&logs.iter().map(|log| (*log).clone()).collect(), 2, 100.0);
        assert!(both(&[&older, &lost, &others, &newer, &last]).starts_with("launcher b of the former start was lost"));
        assert_eq!(both(&[&older, &others, &newer, &last]), "the former start was ended by SIGTERM");
    }
}
