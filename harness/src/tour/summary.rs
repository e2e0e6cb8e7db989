//! The summary of a run, as lines for people: a pure function from event files.

use std::collections::BTreeMap;

use lockstep_contract::events::Event;

use crate::checks::counted;
use crate::history::{Attempt, History, RunEvents};

/// An event, in seconds since the first event of a rank.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Moment {
    pub(super) at: f64,
    pub(super) what: String,
}

/// Starts, deaths, restarts, resumes and the end, ordered by time.
pub(super) fn moments(events: &RunEvents) -> Vec<Moment> {
    let times = || events.records().map(|record| record.t);
    let (Some(begin), Some(end)) = (times().min_by(f64::total_cmp), times().max_by(f64::total_cmp)) else {
        return Vec::new();
    };
    let history = History::of(events);
    let mut moments = starts(&history, events.ranks.len());
    moments.extend(deaths(&history));
    moments.extend(history.attempts.iter().filter_map(resume));
    moments.push((end, "the last rank is done".into()));
    moments.sort_by(|one, other| one.0.total_cmp(&other.0));
    moments.into_iter().map(|(t, what)| Moment { at: t - begin, what }).collect()
}

/// The moment at which the last rank of each generation has joined.
fn starts(history: &History<'_>, ranks: usize) -> Vec<(f64, String)> {
    let mut last = BTreeMap::new();
    for attempt in &history.attempts {
        if let Some(t) = attempt.joined() {
            let latest = last.entry(attempt.generation).or_insert(t);
            *latest = latest.max(t);
        }
    }
    let first = std::iter::once(format!("{} have joined", counted(ranks, "rank")));
    last.into_values().zip(first.chain(std::iter::repeat("all ranks run again".to_owned()))).collect()
}

/// As recorded by the agents; without agents' events, the faults that the ranks recorded themselves.
fn deaths(history: &History<'_>) -> Vec<(f64, String)> {
    let seen: Vec<_> = history.attempts.iter().filter(|attempt| attempt.started.is_some()).filter_map(death).collect();
    if !seen.is_empty() {
        return seen;
    }
    let faults = history.attempts.iter().flat_map(|attempt| {
        attempt.records.iter().filter_map(move |(t, event)| match event {
            Event::Fault { message } => {
                Some((*t, format!("rank {}: {message}{}", attempt.rank, last_step(attempt, *t))))
            }
            _ => None,
        })
    });
    faults.collect()
}

fn death(attempt: &Attempt<'_>) -> Option<(f64, String)> {
    let (rank, end) = (attempt.rank, attempt.ended?);
    let what = match (end.stopped, end.code) {
        (true, _) => format!("rank {rank} is stopped, because a rank alone cannot go on"),
        (false, 0) => return None,
        (false, _) => format!("rank {rank} is dead: {}{}", end.status(), last_step(attempt, end.t)),
    };
    Some((end.t, what))
}

/// The last step that it recorded before `t`.
fn last_step(attempt: &Attempt<'_>, t: f64) -> String {
    let last = attempt.steps().rfind(|(at, _)| *at <= t);
    last.map_or(String::new(), |(_, (epoch, step))| format!(" after step {step} of epoch {epoch}"))
}

/// Only rank 0 counts: all ranks resume from one snapshot.
fn resume(attempt: &Attempt<'_>) -> Option<(f64, String)> {
    attempt.records.iter().filter(|_| attempt.rank == 0).find_map(|(t, event)| match event {
        Event::Resume { epoch, step, .. } => {
            Some((*t, format!("training goes on at step {step} of epoch {epoch}, from the newest snapshot")))
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::End;
    use crate::history::testing::{FakeRun, ended, resume, start, started, step_of};

    /// Rank 1 kills itself; both are started again.
    fn ranks(run: FakeRun) -> FakeRun {
        let run = run.rank(0, 0, 10.0, start(2, 70)).rank(0, 0, 11.0, step_of(1, 5)).rank(0, 0, 13.0, start(2, 80));
        let run = run.rank(0, 0, 13.5, resume(1, 4)).rank(0, 0, 14.0, step_of(1, 7));
        let run = run.rank(1, 0, 10.5, start(2, 71)).rank(1, 0, 11.0, step_of(1, 5));
        let run = run.rank(1, 0, 11.1, Event::Fault { message: "injected: signal 9".into() });
        run.rank(1, 0, 13.2, start(2, 81)).rank(1, 0, 14.5, step_of(1, 7))
    }

    #[test]
    fn lists_starts_deaths_resumes_and_the_end_in_order() {
        let run = FakeRun::default().agent("0", 9.9, started(0, 0, 70)).agent("0", 9.9, started(0, 1, 71));
        let run = run.agent("0", 11.25, ended(0, 1, 71, -9, false)).agent("0", 11.5, ended(0, 0, 70, -15, true));
        let run = run.agent("0", 12.0, started(1, 0, 80)).agent("0", 12.0, started(1, 1, 81));
        let run = ranks(run).agent("0", 15.0, ended(1, 0, 80, 0, false));
        let found: Vec<_> = moments(&run.0).into_iter().map(|moment| (moment.at, moment.what)).collect();
        let due = [
            (0.5, "2 ranks have joined"),
            (1.25, "rank 1 is dead: SIGKILL after step 5 of epoch 1"),
            (1.5, "rank 0 is stopped, because a rank alone cannot go on"),
            (3.2, "all ranks run again"),
            (3.5, "training goes on at step 4 of epoch 1, from the newest snapshot"),
            (4.5, "the last rank is done"),
        ];
        assert_eq!(found.len(), due.len(), "{found:?}");
        for ((at, what), (due_at, due)) in found.iter().zip(due) {
            assert!((at - due_at).abs() < 1e-6 && what == due, "{at} {what}");
        }
    }

    #[test]
    fn uses_the_ranks_own_records_without_an_agents() {
        let found = moments(&ranks(FakeRun::default()).0);
        assert!(
            found.iter().any(|moment| moment.what == "rank 1: injected: signal 9 after step 5 of epoch 1"),
            "{found:?}"
        );
        assert_eq!(moments(&RunEvents::default()), []);
    }

    #[test]
    fn names_signals_and_codes() {
        let status = |code| End { t: 0.0, code, stopped: false }.status();
        assert_eq!(
            [-11, 3, -200, i32::MIN].map(status).join(", "),
            "SIGSEGV, exit code 3, signal 200, exit code -2147483648"
        );
    }
}
