//! What a run's event files tell about its restarts: how many, what was done twice, and how long each took. Pure.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_events::{AgentEvent, AgentLog, Event, EventLog};

/// Restarts and what they cost.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Recovery {
    /// How often workers were started anew.
    pub(crate) restarts: u64,
    /// Steps that were done once more after a restart.
    pub(crate) steps_repeated: u64,
    /// Steps of the job, each counted once.
    pub(crate) steps: u64,
    /// For each restart after which a step was done: seconds from the death before it to the last rank's first step.
    pub(crate) seconds: Vec<f64>,
    /// The rank whose death each restart answers: the first that ended unasked, with its exit code or minus its signal.
    pub(crate) causes: Vec<Cause>,
}

/// A worker that ended by itself and not well.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cause {
    pub(crate) t: f64,
    pub(crate) rank: usize,
    pub(crate) code: i32,
}

impl Recovery {
    /// Reads it from the logs of ranks and agents.
    pub(crate) fn of(ranks: &BTreeMap<usize, EventLog>, agents: &BTreeMap<String, AgentLog>) -> Self {
        let lives: BTreeMap<usize, Vec<Life>> = ranks.iter().map(|(rank, log)| (*rank, lives(log))).collect();
        let (done, repeated) = steps(&lives);
        let causes = causes(agents);
        let mut deaths: Vec<f64> = causes.iter().map(|cause| cause.t).collect();
        if agents.is_empty() {
            deaths.extend(injected(ranks));
        }
        let most = lives.values().map(Vec::len).max().unwrap_or(0).saturating_sub(1);
        let seconds = (1..=most).filter_map(|life| time_of(life, &lives, &deaths)).collect();
        let restarts = restarts(agents).max(most as u64);
        Recovery { restarts, steps_repeated: repeated, steps: done, seconds, causes }
    }
}

/// As the agents count: the most starts that any of them made, less the first.
fn restarts(agents: &BTreeMap<String, AgentLog>) -> u64 {
    let records = agents.values().flat_map(|log| &log.records);
    let attempts = records.filter_map(|record| match record.event {
        AgentEvent::Started { attempt, .. } => Some(attempt),
        _ => None,
    });
    attempts.max().unwrap_or(0)
}

/// A process of a rank, from its start to its end: the steps that it told of, with their times.
type Life = Vec<(f64, (u64, u64))>;

/// The lives of a rank. Restart counts would not do: each agent has its own.
fn lives(log: &EventLog) -> Vec<Life> {
    let mut lives: Vec<Life> = Vec::new();
    for record in &log.records {
        match record.event {
            Event::Start { .. } => lives.push(Vec::new()),
            Event::Step { epoch, step, .. } => {
                if lives.is_empty() {
                    lives.push(Vec::new());
                }
                lives.iter_mut().last().into_iter().for_each(|life| life.push((record.t, (epoch, step))));
            }
            _ => {}
        }
    }
    lives
}

/// Distinct steps, and the most that a rank did more than once.
fn steps(ranks: &BTreeMap<usize, Vec<Life>>) -> (u64, u64) {
    let of = |lives: &Vec<Life>| lives.iter().flatten().map(|(_, step)| *step).collect::<Vec<_>>();
    let all: BTreeSet<_> = ranks.values().flat_map(of).collect();
    let repeated = ranks.values().map(|lives| {
        let done = of(lives);
        done.len() - done.iter().collect::<BTreeSet<_>>().len()
    });
    (all.len() as u64, repeated.max().unwrap_or(0) as u64)
}

/// The first unasked death of each attempt of each agent, the earliest of the job's nodes first.
fn causes(agents: &BTreeMap<String, AgentLog>) -> Vec<Cause> {
    let mut first: BTreeMap<u64, Cause> = BTreeMap::new();
    for record in agents.values().flat_map(|log| &log.records) {
        if let AgentEvent::Ended { attempt, rank, code, stopped: false, .. } = record.event
            && code != 0
        {
            let cause = Cause { t: record.t, rank, code };
            let earliest = first.entry(attempt).or_insert(cause);
            if cause.t < earliest.t {
                *earliest = cause;
            }
        }
    }
    first.into_values().collect()
}

/// When ranks told of a fault that they were about to inflict on themselves: other faults tell of snapshots, for one.
fn injected(ranks: &BTreeMap<usize, EventLog>) -> impl Iterator<Item = f64> {
    let records = ranks.values().flat_map(|log| &log.records);
    let own = |event: &Event| matches!(event, Event::Fault { message } if message.starts_with("injected: "));
    records.filter(move |record| own(&record.event)).map(|record| record.t)
}

/// From the last death before it to the first step that the last rank did in its life of this number.
fn time_of(life: usize, ranks: &BTreeMap<usize, Vec<Life>>, deaths: &[f64]) -> Option<f64> {
    let first_steps = ranks.values().filter_map(|lives| Some(lives.get(life)?.first()?.0));
    let back = first_steps.max_by(f64::total_cmp)?;
    let before = deaths.iter().copied().filter(|t| *t <= back);
    Some(back - before.max_by(f64::total_cmp)?)
}

#[cfg(test)]
mod tests {
    use lockstep_events::{AgentRecord, Record};

    use super::*;

    fn start(t: f64, rank: usize) -> Record {
        Record { t, rank, restart: 0, event: Event::Start { world_size: 2, device: "cpu".into(), pid: 7 } }
    }

    fn step(t: f64, rank: usize, epoch: u64, step: u64) -> Record {
        Record { t, rank, restart: 0, event: Event::Step { epoch, step, loss: 0.5, samples: 4 } }
    }

    fn ranks(records: Vec<Record>) -> BTreeMap<usize, EventLog> {
        let mut logs: BTreeMap<usize, EventLog> = BTreeMap::new();
        records.into_iter().for_each(|record| logs.entry(record.rank).or_default().records.push(record));
        logs
    }

    fn agents(events: Vec<(f64, AgentEvent)>) -> BTreeMap<String, AgentLog> {
        let record = |(t, event)| AgentRecord { t, node: "0".into(), event };
        let log = AgentLog { records: events.into_iter().map(record).collect(), torn: vec![] };
        BTreeMap::from([("0".into(), log)])
    }

    fn started(attempt: u64, rank: usize) -> AgentEvent {
        AgentEvent::Started { attempt, rank, local_rank: rank, pid: 7 }
    }

    fn ended(attempt: u64, rank: usize, code: i32, stopped: bool) -> AgentEvent {
        AgentEvent::Ended { attempt, rank, local_rank: rank, pid: 7, code, stopped }
    }

    #[test]
    fn counts_restarts_repeated_steps_and_the_time_to_recover() {
        let ranks = ranks(vec![
            start(0.5, 0),
            start(0.5, 1),
            step(1.0, 0, 0, 0),
            step(1.1, 1, 0, 0),
            step(2.0, 0, 0, 1),
            step(2.1, 1, 0, 1),
            // Rank 1 dies at 2.5 before it tells of step 2, which rank 0 has done.
            step(2.4, 0, 0, 2),
            start(2.9, 0),
            start(2.9, 1),
            step(3.0, 0, 0, 1),
            step(3.25, 1, 0, 1),
            step(3.5, 0, 0, 2),
            step(3.5, 0, 0, 3),
        ]);
        let agents = agents(vec![
            (0.1, started(0, 0)),
            (0.1, started(0, 1)),
            (2.5, ended(0, 1, -9, false)),
            (2.5, ended(0, 0, -15, true)),
            (2.6, started(1, 0)),
            (4.0, ended(1, 0, 0, false)),
        ]);
        let found = Recovery::of(&ranks, &agents);
        assert_eq!((found.restarts, found.steps, found.steps_repeated), (1, 4, 2));
        assert_eq!(found.seconds, [0.75]);
        assert_eq!(found.causes, [Cause { t: 2.5, rank: 1, code: -9 }]);
    }

    #[test]
    fn finds_nothing_in_a_run_without_restarts_or_without_files() {
        assert_eq!(Recovery::of(&BTreeMap::new(), &BTreeMap::new()), Recovery::default());
        let found = Recovery::of(&ranks(vec![step(1.0, 0, 0, 0)]), &agents(vec![(0.1, started(0, 0))]));
        assert_eq!(found, Recovery { steps: 1, ..Recovery::default() });
    }

    #[test]
    fn takes_the_first_of_two_deaths_in_one_attempt_for_the_cause() {
        let agents = agents(vec![(2.5, ended(0, 1, 1, false)), (2.4, ended(0, 0, -11, false))]);
        assert_eq!(Recovery::of(&BTreeMap::new(), &agents).causes, [Cause { t: 2.4, rank: 0, code: -11 }]);
    }
}
