//! The scheduler's job in which this agent runs. The workers save before its time limit and get the scheduler's grace period. If the
//! job was started again, the agent reports why.
//!
//! [`TimeLimit`] decides when the workers save a snapshot and end, so that no step is lost. Pure: [`super::run`] waits. Only the first agent
//! of a job does this: a request to one rank reaches all.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lockstep_contract::events::{AgentEvent, AgentLog, read_agents};
use lockstep_contract::scheduler::{self, Allocation, JobState, Question, Read, Scheduler, Started, restarts};
use lockstep_contract::snapshot_request::{SAVE_AND_END, SAVED};
use lockstep_process::{Workers, signal_name};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::signals::all_can_save;
use super::state_machine::Event;
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

/// How long before the end the workers are asked, by default: this, or a tenth of the time that is left when the agent learns the end,
/// if that is less.
const NOTICE: Duration = Duration::from_secs(60);

/// How long after the first start the scheduler is asked for the end. Jobs that are over by then send it no request.
const ASK_AFTER: Duration = Duration::from_secs(20);

/// What is known of the time limit.
struct TimeLimit {
    /// `--save-before-limit`.
    notice: Option<Duration>,
    question: Option<(Instant, Question<JobState>)>,
    end: Option<End>,
    /// The workers could not be asked the first time.
    retried: bool,
}

/// The end of the job.
struct End {
    at: Instant,
    ask_at: Instant,
    /// Who says so.
    from: String,
}

/// What is to be done now.
#[derive(Debug)]
enum Due {
    /// Ask the scheduler for the end.
    Ask(Question<JobState>),
    /// Ask the workers to save a snapshot and to end, because the job ends at `end`, according to `from`.
    Save { end: Instant, from: String },
}

impl TimeLimit {
    /// The limit that the user, a variable or the scheduler's command gives, in this order. `limit` is `--time-limit`,
    /// `notice` is `--save-before-limit`. If `notice` is 0, there is no limit.
    pub(super) fn new(
        (limit, notice): (Option<Duration>, Option<Duration>),
        job: Option<&Allocation>,
        read: &Read<'_>,
        (now, wall): (Instant, SystemTime),
    ) -> Self {
        let mut known = TimeLimit { notice, question: None, end: None, retried: false };
        if notice == Some(Duration::ZERO) {
            return known;
        }
        if let Some(limit) = limit {
            known.ends_in(limit, "--time-limit".to_owned(), now);
        } else if let Some(end) = job.and_then(|_| scheduler::job_end(read)) {
            known.ends_in(end.duration_since(wall).unwrap_or_default(), "SLURM_JOB_END_TIME".to_owned(), now);
        } else {
            known.question = job.and_then(Allocation::ask_for_state).map(|question| (now + ASK_AFTER, question));
        }
        known
    }

    /// The scheduler has answered: `end` by this clock, or nothing.
    pub(super) fn answered(&mut self, end: Option<SystemTime>, from: String, (now, wall): (Instant, SystemTime)) {
        if let Some(end) = end {
            self.ends_in(end.duration_since(wall).unwrap_or_default(), from, now);
        }
    }

    fn ends_in(&mut self, left: Duration, from: String, now: Instant) {
        let notice = self.notice.unwrap_or_else(|| NOTICE.min(left / 10));
        // A job that has less time than the notice is not ended before it has begun: SIGTERM at its limit is a request, too.
        self.end = now.checked_add(left).filter(|_| left > notice).map(|at| End { at, ask_at: at - notice, from });
    }

    /// The workers cannot save yet: they are asked again `at`, unless the job has ended by then. Returns true the first time.
    pub(super) fn retry(&mut self, at: Instant, end: Instant, from: String) -> bool {
        self.end = (at < end).then_some(End { at: end, ask_at: at, from });
        !std::mem::replace(&mut self.retried, true)
    }

    /// When something is due.
    pub(super) fn at(&self) -> Option<Instant> {
        let question = self.question.as_ref().map(|(at, _)| *at);
        question.into_iter().chain(self.end.as_ref().map(|end| end.ask_at)).min()
    }

    /// What is due now; each once.
    pub(super) fn due(&mut self, now: Instant) -> Option<Due> {
        if let Some((_, question)) = self.question.take_if(|(at, _)| *at <= now) {
            return Some(Due::Ask(question));
        }
        let End { at, from, .. } = self.end.take_if(|end| end.ask_at <= now)?;
        Some(Due::Save { end: at, from })
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

    const MINUTE: Duration = Duration::from_secs(60);

    fn limit(flags: (Option<Duration>, Option<Duration>), variables: &[(&str, &str)], now: Instant) -> TimeLimit {
        let variable =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        let read = Read { variable: &variable, file: &|_: &str| Err(std::io::ErrorKind::NotFound.into()) };
        let job = Allocation::find(&read, None).unwrap();
        TimeLimit::new(flags, job.as_ref(), &read, (now, SystemTime::UNIX_EPOCH))
    }

    #[track_caller]
    fn assert_saves(limit: &mut TimeLimit, at: Instant, left: Duration, from: &str) {
        assert_eq!(limit.at(), Some(at));
        assert!(limit.due(at - Duration::from_millis(1)).is_none());
        let Some(Due::Save { end, from: by }) = limit.due(at) else { panic!("nothing is due") };
        assert_eq!((end - at, by.as_str()), (left, from));
        assert_eq!(limit.at(), None, "once");
    }

    #[test]
    fn saves_a_minute_before_the_end_that_the_user_gives() {
        let now = Instant::now();
        let mut hour = limit((Some(60 * MINUTE), None), &[("SLURM_JOB_ID", "17"), ("SLURM_JOB_END_TIME", "9")], now);
        assert_saves(&mut hour, now + 59 * MINUTE, MINUTE, "--time-limit");
    }

    #[test]
    fn saves_before_the_end_that_slurms_variable_says() {
        let now = Instant::now();
        let slurm = [("SLURM_JOB_ID", "17"), ("SLURM_JOB_END_TIME", "3600")];
        assert_saves(&mut limit((None, None), &slurm, now), now + 59 * MINUTE, MINUTE, "SLURM_JOB_END_TIME");
        let early = limit((None, Some(5 * MINUTE)), &slurm, now).at();
        assert_eq!(early, Some(now + 55 * MINUTE));
        // A variable that is left over from another job.
        assert_eq!(limit((None, None), &slurm[1..], now).at(), None);
    }

    #[test]
    fn asks_the_scheduler_once_where_no_variable_says_the_end() {
        let now = Instant::now();
        let mut asked = limit((None, None), &[("SLURM_JOB_ID", "17")], now);
        assert_eq!(asked.at(), Some(now + ASK_AFTER));
        assert!(asked.due(now).is_none());
        let Some(Due::Ask(question)) = asked.due(now + ASK_AFTER) else { panic!("nothing is asked") };
        assert_eq!((question.words[0].as_str(), asked.at()), ("squeue", None));
        let wall = SystemTime::UNIX_EPOCH;
        asked.answered(Some(wall + 5 * MINUTE), "squeue".into(), (now, wall));
        assert_saves(&mut asked, now + 5 * MINUTE - 30 * MINUTE / 60, MINUTE / 2, "squeue");
        asked.answered(None, "squeue".into(), (now, wall));
        assert_eq!(asked.at(), None);
    }

    #[test]
    fn asks_workers_again_that_cannot_save_yet_until_the_end() {
        let now = Instant::now();
        let mut asked = limit((Some(60 * MINUTE), None), &[], now);
        let (first, end) = (now + 59 * MINUTE, now + 60 * MINUTE);
        assert!(asked.due(first).is_some());
        let second = Duration::from_secs(1);
        assert!(asked.retry(first + second, end, "--time-limit".into()));
        assert_saves(&mut asked, first + second, MINUTE - second, "--time-limit");
        assert!(!asked.retry(end, end, "--time-limit".into()), "only once");
        assert_eq!(asked.at(), None, "the job has ended by then");
    }

    #[test]
    fn leaves_a_job_alone_that_has_no_limit_or_hardly_any_time_left() {
        let now = Instant::now();
        let slurm = [("SLURM_JOB_ID", "17"), ("SLURM_JOB_END_TIME", "3600")];
        assert_eq!(limit((None, Some(Duration::ZERO)), &slurm, now).at(), None);
        assert_eq!(limit((None, Some(Duration::ZERO)), &slurm[..1], now).at(), None);
        assert_eq!(limit((None, Some(60 * MINUTE)), &slurm, now).at(), None);
        assert_eq!(limit((None, None), &[("SLURM_JOB_ID", "17"), ("SLURM_JOB_END_TIME", "0")], now).at(), None);
        assert_eq!(limit((None, None), &[], now).at(), None);
        assert_eq!(limit((Some(Duration::MAX), None), &[], now).at(), None);
    }
}
