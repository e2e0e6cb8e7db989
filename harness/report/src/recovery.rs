//! The cost of each failure: lost steps, and the times until an agent detected it, until all workers ran, and until all
//! trained.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_contract::events::{AgentEvent, Event};
use serde::Serialize;

use crate::history::{Attempt, End, History};

/// The steps of a job: (epoch, step in it), which also gives their order.
type Steps = BTreeSet<(u64, u64)>;

/// A failure and its cost. Times count from the fault; they are `None` for what never happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Recovery {
    /// The time of the fault, in seconds since the run's first event.
    pub at: f64,
    /// A description: `rank 1 on node0: ended by SIGKILL`.
    pub cause: String,
    /// The rank that failed first, if a rank failed.
    pub rank: Option<usize>,
    /// How that rank ended, according to its agent: its exit code, or the negative number of the signal.
    #[serde(skip)]
    pub code: Option<i32>,
    /// Steps of the job that had to be repeated.
    pub(crate) steps_lost: Option<u64>,
    /// Until an agent detected it.
    pub(crate) time_to_detect: Option<f64>,
    /// Until the last worker of the next attempt was started.
    pub(crate) time_to_restart: Option<f64>,
    /// Until the last rank had completed a step again.
    pub(crate) time_to_next_step: Option<f64>,
}

/// The restarts of a run, and their total cost.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Restarts {
    /// How often workers were restarted.
    pub count: u64,
    /// Steps of the job, each counted once.
    pub steps: u64,
    /// Steps that a rank did more than once; the maximum over ranks.
    pub steps_repeated: u64,
    /// One for each failure, ordered by time.
    pub(crate) recoveries: Vec<Recovery>,
}

impl Restarts {
    /// Counts the restarts in a history.
    pub fn of(history: &History<'_>) -> Self {
        let generations: BTreeSet<_> = history.attempts.iter().map(|attempt| attempt.generation).collect();
        let mut ranks: BTreeMap<usize, Vec<(u64, u64)>> = BTreeMap::new();
        for attempt in &history.attempts {
            ranks.entry(attempt.rank).or_default().extend(attempt.steps().map(|(_, step)| step));
        }
        let repeated = ranks.values().map(|done| done.len() - done.iter().collect::<BTreeSet<_>>().len());
        Restarts {
            count: generations.len().saturating_sub(1) as u64,
            steps_repeated: repeated.max().unwrap_or(0) as u64,
            steps: ranks.values().flatten().collect::<BTreeSet<_>>().len() as u64,
            recoveries: history.recoveries(),
        }
    }

    /// The rank that died first in each failure, and its exit code or negative signal number, according to agents.
    pub fn deaths(&self) -> impl Iterator<Item = (usize, i32)> {
        self.recoveries.iter().filter_map(|recovery| Some((recovery.rank?, recovery.code?)))
    }

    /// Seconds of the slowest recovery, from the fault to the next step of the last rank.
    pub fn slowest(&self) -> Option<f64> {
        self.recoveries.iter().filter_map(|recovery| recovery.time_to_next_step).max_by(f64::total_cmp)
    }
}

impl History<'_> {
    /// One for each generation that was followed by another, or in which a rank failed.
    pub(crate) fn recoveries(&self) -> Vec<Recovery> {
        let mut generations: BTreeMap<_, Vec<&Attempt<'_>>> = BTreeMap::new();
        for attempt in &self.attempts {
            generations.entry(attempt.generation).or_default().push(attempt);
        }
        let mut generations = generations.into_values().peekable();
        let (mut done, mut found) = (Steps::new(), vec![]);
        while let Some(now) = generations.next() {
            let failed = Failed { history: self, now, next: generations.peek().map(Vec::as_slice) };
            done.extend(failed.now.iter().flat_map(|attempt| attempt.steps().map(|(_, step)| step)));
            if let Some(cause) = failed.cause() {
                let lost = failed.next.and_then(|next| lost(&mut done, next));
                found.push(failed.cost(cause, lost));
            }
        }
        found
    }

    /// An agent's first decision between two times to restart its workers, and the reason.
    fn decision(&self, from: f64, to: f64) -> Option<(f64, String)> {
        let decided = self.agents.values().flatten().filter_map(|(t, event)| match event {
            AgentEvent::Restarting { reason, .. } if (from..=to).contains(t) => Some((*t, reason.clone())),
            _ => None,
        });
        decided.min_by(|one, other| one.0.total_cmp(&other.0))
    }
}

/// The cause of a failure.
struct Cause {
    t: f64,
    what: String,
    rank: Option<usize>,
    code: Option<i32>,
}

impl Cause {
    fn new(t: f64, what: String) -> Self {
        Cause { t, what, rank: None, code: None }
    }

    fn earliest(causes: impl Iterator<Item = Cause>) -> Option<Cause> {
        causes.min_by(|one, other| one.t.total_cmp(&other.t))
    }
}

/// The attempts of all ranks that belong together, and those of the next generation, if there is one.
struct Failed<'a> {
    history: &'a History<'a>,
    now: Vec<&'a Attempt<'a>>,
    next: Option<&'a [&'a Attempt<'a>]>,
}

impl Failed<'_> {
    /// The first failure; an end without a record counts only if there is nothing else.
    fn cause(&self) -> Option<Cause> {
        let failed = self.now.iter().filter_map(|attempt| failure(attempt));
        let lost = self.history.agents.keys().filter_map(|node| self.loss(node));
        let silent = || {
            let silent = self.now.iter().filter(|attempt| attempt.ended.is_none()).map(|attempt| Cause {
                rank: Some(attempt.rank),
                ..Cause::new(attempt.last(), format!("{}: no more events from it", whose(attempt)))
            });
            Cause::earliest(silent)
        };
        let unknown = || {
            let t = self.now.iter().map(|attempt| attempt.last()).fold(0.0, f64::max);
            self.next.map(|_| Cause::new(t, "the ranks were started again".into()))
        };
        if self.history.goes_on && self.next.is_none() {
            return Cause::earliest(failed);
        }
        Cause::earliest(failed.chain(lost)).or_else(|| self.regrouped()).or_else(silent).or_else(unknown)
    }

    /// A node whose agent and ranks all stopped writing while they had work.
    fn loss(&self, node: &str) -> Option<Cause> {
        let over = self.history.agents.get(node)?.iter().any(|(_, event)| matches!(event, AgentEvent::Finished { .. }));
        let mut here = self.now.iter().filter(|attempt| attempt.node == Some(node)).peekable();
        let generation = here.peek()?.generation;
        let mut all = self.history.attempts.iter();
        let is_last = !all.any(|attempt| attempt.node == Some(node) && attempt.generation > generation);
        let silent = here.all(|attempt| attempt.ended.is_none());
        let what = format!("node {node}: no more events from its agent and its ranks");
        (!over && is_last && silent).then(|| Cause::new(self.history.last_of_node(node), what))
    }

    /// The agents decided to restart although no rank had failed.
    fn regrouped(&self) -> Option<Cause> {
        self.next?;
        let began = self.now.iter().map(|attempt| attempt.first()).fold(0.0, f64::max);
        let (t, what) = self.history.decision(began, self.next_began())?;
        Some(Cause::new(t, what))
    }

    fn next_began(&self) -> f64 {
        self.next.into_iter().flatten().map(|attempt| attempt.first()).fold(f64::INFINITY, f64::min)
    }

    fn cost(&self, cause: Cause, steps_lost: Option<u64>) -> Recovery {
        let since = |t: f64| (t - cause.t).max(0.0);
        // The latest of all counts; `None` if one of them never got that far.
        let last = |of: &dyn Fn(&Attempt<'_>) -> Option<f64>| {
            let times = self.next?.iter().map(|attempt| of(attempt)).collect::<Option<Vec<f64>>>()?;
            times.into_iter().max_by(f64::total_cmp).map(since)
        };
        let up = |attempt: &Attempt<'_>| attempt.started.or(attempt.records.first().map(|record| record.0));
        Recovery {
            at: cause.t - self.history.bounds().0,
            steps_lost,
            time_to_detect: self.detected(cause.t).map(since),
            time_to_restart: last(&up),
            time_to_next_step: last(&|attempt| attempt.steps().next().map(|(t, _)| t)),
            cause: cause.what,
            rank: cause.rank,
            code: cause.code,
        }
    }

    /// When an agent detected the failure: it saw a rank's end, or decided to restart.
    fn detected(&self, fault: f64) -> Option<f64> {
        let seen = self.now.iter().filter(|attempt| attempt.started.is_some());
        let ends = seen.filter_map(|attempt| attempt.ended).map(|end| end.t).filter(|t| *t >= fault);
        let decided = self.history.decision(fault, self.next_began()).map(|(t, _)| t);
        ends.chain(decided).min_by(f64::total_cmp)
    }
}

/// A rank that failed without being stopped, from the last fault that it recorded.
fn failure(attempt: &Attempt<'_>) -> Option<Cause> {
    let end = attempt.ended.filter(|end| end.is_failure());
    let (t, what) = match (attempt.last_fault(), end) {
        (None, None) => return None,
        (Some((t, message)), None) => (t, message.to_owned()),
        (None, Some(end)) => (end.t, end.manner()),
        (Some((t, message)), Some(end)) => (t.min(end.t), format!("{}, {message}", end.manner())),
    };
    let seen = |end: End| attempt.started.map(|_| end.code);
    Some(Cause { t, what: format!("{}: {what}", whose(attempt)), rank: Some(attempt.rank), code: end.and_then(seen) })
}

fn whose(attempt: &Attempt<'_>) -> String {
    let place = attempt.node.map_or(String::new(), |node| format!(" on {node}"));
    format!("rank {}{place}", attempt.rank)
}

/// How many of the completed steps the next generation repeats; `None` if it completes no step. They are removed from `done`.
fn lost(done: &mut Steps, next: &[&Attempt<'_>]) -> Option<u64> {
    let position = |attempt: &&Attempt<'_>| {
        attempt.records.iter().find_map(|(_, event)| match event {
            Event::Resume { epoch, step, .. } | Event::Step { epoch, step, .. } => Some((*epoch, *step)),
            _ => None,
        })
    };
    let first = next.iter().filter_map(position).min()?;
    Some(done.split_off(&first).len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;

    fn restarts(run: &FakeRun) -> Restarts {
        Restarts::of(&History::of(&run.0))
    }

    /// Ranks 0 and 1 of node "0", started in this attempt with distinct process ids.
    fn started_both(run: FakeRun, attempt: u64, t: f64) -> FakeRun {
        let pid = |rank| 10 * (attempt as u32 + 1) + rank as u32;
        [0, 1].into_iter().fold(run, |run, rank| run.agent("0", t, started(attempt, rank, pid(rank))))
    }

    #[test]
    fn counts_restarts_repeated_steps_and_the_time_to_recover() {
        let mut run = started_both(FakeRun::default(), 0, 0.1);
        for rank in [0, 1] {
            run = run.rank(rank, 0, 0.5, start(2, 10 + rank as u32)).steps((rank, 0), 0, 0..2, 1.0, 1.0);
        }
        // Rank 1 dies before it records step 2, which rank 0 has done.
        run = run.rank(0, 0, 2.4, step_of(0, 2));
        run = run.agent("0", 2.5, ended(0, 1, 11, -9, false)).agent("0", 2.5, ended(0, 0, 10, -15, true));
        run = started_both(run, 1, 2.6);
        for rank in [0, 1] {
            run = run.rank(rank, 1, 2.9, start(2, 20 + rank as u32));
        }
        run = run.steps((0, 1), 0, 1..4, 3.0, 0.25).rank(1, 1, 3.25, step_of(0, 1));
        let found = restarts(&run.agent("0", 4.0, ended(1, 0, 20, 0, false)));
        assert_eq!((found.count, found.steps, found.steps_repeated), (1, 4, 2));
        assert!((found.slowest().unwrap() - 0.75).abs() < 1e-6, "{found:?}");
        assert_eq!(found.deaths().next(), Some((1, -9)));
    }

    #[test]
    fn finds_nothing_in_a_run_without_restarts_or_without_files() {
        assert_eq!(restarts(&FakeRun::default()), Restarts::default());
        let run = FakeRun::default().agent("0", 0.1, started(0, 0, 7)).rank(0, 0, 1.0, step_of(0, 0));
        let found = restarts(&run.agent("0", 2.0, ended(0, 0, 7, 0, false)));
        assert_eq!(found, Restarts { steps: 1, ..Restarts::default() });
    }

    #[test]
    fn takes_the_first_of_two_deaths_in_one_attempt_as_the_cause() {
        let run = started_both(FakeRun::default(), 0, 0.1);
        let run = run.agent("0", 2.4, ended(0, 0, 10, -11, false)).agent("0", 2.5, ended(0, 1, 11, 1, false));
        assert_eq!(restarts(&run).deaths().collect::<Vec<_>>(), [(0, -11)]);
    }

    #[test]
    fn distinguishes_a_death_from_a_fault_that_another_rank_survived() {
        let mut run = started_both(FakeRun::default(), 0, 0.1);
        for rank in [0, 1] {
            run = run.rank(rank, 0, 0.5, start(2, 10 + rank as u32));
        }
        run = run.rank(0, 0, 0.6, Event::Fault { message: "passed over a torn snapshot".into() });
        run = run.agent("0", 0.9, ended(0, 1, 11, -9, false)).agent("0", 1.0, ended(0, 0, 10, -15, true));
        assert_eq!(restarts(&run).deaths().collect::<Vec<_>>(), [(1, -9)]);
    }

    #[test]
    fn counts_a_job_that_was_submitted_again_as_another_generation() {
        let mut run = started_both(FakeRun::default().agent("0", 0.0, formed(0, 0, 0, 1)), 0, 0.1);
        for rank in [0, 1] {
            run = run.rank(rank, 0, 0.5, start(2, 10 + rank as u32)).steps((rank, 0), 0, 0..4, 1.0, 0.1);
        }
        run = run.agent("0", 2.0, ended(0, 1, 11, -9, false)).agent("0", 2.1, ended(0, 0, 10, -15, true));
        run = run.agent("0", 2.2, AgentEvent::Finished { code: 1 });
        run = run.agent("0", 3.0, formed(0, 0, 0, 1));
        for rank in [0, 1] {
            let pid = 30 + rank as u32;
            run = run.agent("0", 3.1, started(0, rank, pid)).rank(rank, 0, 3.5, start(2, pid));
            run = run.rank(rank, 0, 3.6, resume(0, 2)).steps((rank, 0), 0, 2..4, 4.0, 0.1);
            run = run.agent("0", 5.0, ended(0, rank, pid, 0, false));
        }
        let found = restarts(&run.agent("0", 5.1, AgentEvent::Finished { code: 0 }));
        assert_eq!((found.count, found.steps, found.steps_repeated), (1, 4, 2));
        let [recovery] = &found.recoveries[..] else { panic!("{found:?}") };
        assert_eq!((recovery.rank, recovery.steps_lost), (Some(1), Some(2)));
        assert!((recovery.time_to_next_step.unwrap() - 2.0).abs() < 1e-6, "{recovery:?}");
    }
}
