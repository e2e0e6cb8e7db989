//! What happened in a run, as lines for people: a pure function from event files.

use std::collections::BTreeMap;

use lockstep_events::{AgentEvent, AgentLog, Event, EventLog, Record};
use lockstep_launch::process::signal_name;

use crate::proofs::counted;

/// Something that happened, in seconds since the run's first event.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Moment {
    pub(super) at: f64,
    pub(super) what: String,
}

/// Starts, deaths, restarts, resumes and the end, in order of time.
pub(super) fn story(ranks: &BTreeMap<usize, EventLog>, agents: &BTreeMap<String, AgentLog>) -> Vec<Moment> {
    let records = || ranks.values().flat_map(|log| &log.records);
    let Some(begin) = records().map(|record| record.t).min_by(f64::total_cmp) else { return Vec::new() };
    let mut moments = starts(ranks);
    moments.extend(deaths(ranks, agents));
    moments.extend(records().filter_map(resume));
    moments
        .extend(records().map(|record| record.t).max_by(f64::total_cmp).map(|at| (at, "the last rank is done".into())));
    moments.sort_by(|one, other| one.0.total_cmp(&other.0));
    moments.into_iter().map(|(t, what)| Moment { at: t - begin, what }).collect()
}

/// The moment at which the last rank begins each of its lives.
fn starts(ranks: &BTreeMap<usize, EventLog>) -> Vec<(f64, String)> {
    let lives = |log: &EventLog| {
        let starts = log.records.iter().filter(|record| matches!(record.event, Event::Start { .. }));
        starts.map(|record| record.t).collect::<Vec<_>>()
    };
    let all: Vec<Vec<f64>> = ranks.values().map(lives).collect();
    let most = all.iter().map(Vec::len).max().unwrap_or(0);
    let last = |life: usize| all.iter().filter_map(|starts| starts.get(life)).copied().max_by(f64::total_cmp);
    let told = |life| match life {
        0 => format!("{} have joined", counted(ranks.len(), "rank")),
        _ => "all ranks run again".to_owned(),
    };
    (0..most).filter_map(|life| Some((last(life)?, told(life)))).collect()
}

/// As the agents saw them; without agents' events, as the ranks told of what they were about to do to themselves.
fn deaths(ranks: &BTreeMap<usize, EventLog>, agents: &BTreeMap<String, AgentLog>) -> Vec<(f64, String)> {
    let ended = agents.values().flat_map(|log| &log.records).filter_map(|record| match record.event {
        AgentEvent::Ended { rank, code, stopped: false, .. } if code != 0 => {
            Some((record.t, format!("rank {rank} is dead: {}{}", how(code), last_step(ranks.get(&rank), record.t))))
        }
        AgentEvent::Ended { rank, stopped: true, .. } => {
            Some((record.t, format!("rank {rank} is stopped, because a rank alone cannot go on")))
        }
        _ => None,
    });
    let ended: Vec<_> = ended.collect();
    if !ended.is_empty() {
        return ended;
    }
    let records = ranks.values().flat_map(|log| &log.records);
    let told = records.filter_map(|record| match &record.event {
        Event::Fault { message } => {
            Some((record.t, format!("rank {}: {message}{}", record.rank, last_step(ranks.get(&record.rank), record.t))))
        }
        _ => None,
    });
    told.collect()
}

/// `SIGKILL`, `exit code 3`.
fn how(code: i32) -> String {
    let name = code.checked_neg().filter(|signal| *signal > 0).map(signal_name);
    name.unwrap_or_else(|| format!("exit code {code}"))
}

/// The last step that it told of before `t`.
fn last_step(log: Option<&EventLog>, t: f64) -> String {
    let steps = log.into_iter().flat_map(|log| &log.records).filter(|record| record.t <= t);
    let told = steps.filter_map(|record| match record.event {
        Event::Step { epoch, step, .. } => Some(format!(" after step {step} of epoch {epoch}")),
        _ => None,
    });
    told.fold(String::new(), |_, last| last)
}

/// Rank 0 speaks for all: they resume from one snapshot.
fn resume(record: &Record) -> Option<(f64, String)> {
    match &record.event {
        Event::Resume { epoch, step, .. } if record.rank == 0 => {
            Some((record.t, format!("training goes on at step {step} of epoch {epoch}, from the newest snapshot")))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use lockstep_events::AgentRecord;

    use super::*;

    fn log(rank: usize, events: Vec<(f64, Event)>) -> (usize, EventLog) {
        let records = events.into_iter().map(|(t, event)| Record { t, rank, restart: 0, event }).collect();
        (rank, EventLog { records, torn: vec![] })
    }

    fn start() -> Event {
        Event::Start { world_size: 2, device: "cpu".into(), pid: 7 }
    }

    fn step(step: u64) -> Event {
        Event::Step { epoch: 1, step, loss: 0.5, samples: 4 }
    }

    fn ranks() -> BTreeMap<usize, EventLog> {
        let resume = Event::Resume { epoch: 1, step: 4, path: "x".into() };
        BTreeMap::from([
            log(0, vec![(10.0, start()), (11.0, step(5)), (13.0, start()), (13.5, resume), (14.0, step(7))]),
            log(
                1,
                vec![
                    (10.5, start()),
                    (11.0, step(5)),
                    (11.1, Event::Fault { message: "injected: signal 9".into() }),
                    (13.2, start()),
                    (14.5, step(7)),
                ],
            ),
        ])
    }

    #[test]
    fn tells_starts_deaths_resumes_and_the_end_in_order() {
        let ended =
            |rank, code, stopped| AgentEvent::Ended { attempt: 0, rank, local_rank: rank, pid: 7, code, stopped };
        let record = |t, event| AgentRecord { t, node: "0".into(), event };
        let records = vec![
            record(11.25, ended(1, -9, false)),
            record(11.5, ended(0, -15, true)),
            record(15.0, ended(0, 0, false)),
        ];
        let agents = BTreeMap::from([("0".into(), AgentLog { records, torn: vec![] })]);
        let told: Vec<_> = story(&ranks(), &agents).into_iter().map(|moment| (moment.at, moment.what)).collect();
        let due = [
            (0.5, "2 ranks have joined"),
            (1.25, "rank 1 is dead: SIGKILL after step 5 of epoch 1"),
            (1.5, "rank 0 is stopped, because a rank alone cannot go on"),
            (3.2, "all ranks run again"),
            (3.5, "training goes on at step 4 of epoch 1, from the newest snapshot"),
            (4.5, "the last rank is done"),
        ];
        assert_eq!(told.len(), due.len(), "{told:?}");
        for ((at, what), (due_at, due)) in told.iter().zip(due) {
            assert!((at - due_at).abs() < 1e-9 && what == due, "{at} {what}");
        }
    }

    #[test]
    fn takes_the_ranks_own_words_where_no_agent_wrote_and_says_nothing_of_nothing() {
        let told = story(&ranks(), &BTreeMap::new());
        assert!(
            told.iter().any(|moment| moment.what == "rank 1: injected: signal 9 after step 5 of epoch 1"),
            "{told:?}"
        );
        assert_eq!(story(&BTreeMap::new(), &BTreeMap::new()), []);
    }

    #[test]
    fn names_signals_and_codes() {
        assert_eq!(
            [how(-11), how(3), how(-200), how(i32::MIN)].join(", "),
            "SIGSEGV, exit code 3, signal 200, exit code -2147483648"
        );
    }
}
