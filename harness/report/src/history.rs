//! The history of a run, read from its event files: the worker processes, each one an [`Attempt`] of a rank.
//!
//! What is damaged is noted and left out; the rest is still read. An agent records when a process began and how it ended; the rank itself
//! records what it did. The two are matched by rank and process id, otherwise by time: a worker inside a wrapper has another id than the
//! process that the agent started.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::path::Path;

use lockstep_contract::events::{AgentEvent, AgentLog, Event, EventLog, Record, Salvaged, salvage};
use lockstep_process::signal_name;

/// The event files of a run.
#[derive(Clone, Debug, Default)]
pub struct RunEvents {
    /// By rank.
    pub ranks: BTreeMap<usize, EventLog>,
    /// By node.
    pub agents: BTreeMap<String, AgentLog>,
    /// What cannot be read, one sentence each.
    pub unreadable: Vec<String>,
}

impl RunEvents {
    /// Reads all event files of `folder`.
    pub fn read(folder: &Path) -> Self {
        match salvage(folder) {
            Ok(Salvaged { ranks, agents, left_out }) => RunEvents { ranks, agents, unreadable: left_out },
            Err(error) => {
                let cause = error.source().map_or(String::new(), |cause| format!(": {cause}"));
                RunEvents { unreadable: vec![format!("no event is drawn: {error}{cause}")], ..RunEvents::default() }
            }
        }
    }

    /// All records of all ranks, rank by rank.
    pub fn records(&self) -> impl Iterator<Item = &Record> {
        self.ranks.values().flat_map(|log| &log.records)
    }

    /// The number of the process that was started last as `rank`: as its agent says or, where that writes no events, as it said
    /// itself.
    pub fn newest_process(&self, rank: usize) -> Option<i32> {
        let started = self.agents.values().flat_map(|log| &log.records).filter_map(|record| match record.event {
            AgentEvent::Started { rank: of, pid, .. } if of == rank => Some((record.t, pid)),
            _ => None,
        });
        let own =
            self.ranks.get(&rank).into_iter().flat_map(|log| &log.records).filter_map(|record| match record.event {
                Event::Start { pid, .. } => Some((record.t, pid)),
                _ => None,
            });
        let newest = started.chain(own).max_by(|one, other| one.0.total_cmp(&other.0));
        newest.map(|(_, pid)| pid as i32)
    }

    /// The numbers of ranks with which the job made steps, one after the other, as rank 0 recorded them.
    pub fn world_sizes(&self) -> Vec<usize> {
        let (mut sizes, mut current) = (Vec::new(), None);
        for record in self.ranks.get(&0).into_iter().flat_map(|log| &log.records) {
            match record.event {
                Event::Start { world_size, .. } => current = Some(world_size),
                Event::Step { .. } => sizes.extend(current.take()),
                _ => {}
            }
        }
        sizes.dedup();
        sizes
    }

    /// The number of ranks that were started last, as rank 0 recorded it.
    pub fn last_world_size(&self) -> Option<usize> {
        let mut records = self.ranks.get(&0)?.records.iter().rev();
        records.find_map(|record| match record.event {
            Event::Start { world_size, .. } => Some(world_size),
            _ => None,
        })
    }

    /// The furthest step that any rank recorded: (epoch, step in it).
    pub fn last_step(&self) -> Option<(u64, u64)> {
        self.records().filter_map(|record| step(&record.event)).max()
    }
}

/// (epoch, step in it), of a step.
pub fn step(event: &Event) -> Option<(u64, u64)> {
    match event {
        Event::Step { epoch, step, .. } => Some((*epoch, *step)),
        _ => None,
    }
}

/// Times beyond this many seconds since the Unix epoch (the year 5138) are invalid.
const LATEST: f64 = 1e11;

/// The start of a rank's message about a fault that it is about to inject into itself.
const INJECTED: &str = "injected: ";

/// One worker process. Times are seconds since the Unix epoch and never go backwards.
#[derive(Debug)]
pub struct Attempt<'a> {
    pub rank: usize,
    /// The node of the agent that started it.
    pub node: Option<&'a str>,
    pub generation: Generation,
    /// When its agent started it.
    pub started: Option<f64>,
    /// How it ended, as recorded by its agent or by itself.
    pub ended: Option<End>,
    /// Its own records.
    pub records: Vec<(f64, &'a Event)>,
    pid: Option<u32>,
}

/// The rendezvous round of an attempt. Attempts of one generation ran together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Generation {
    /// How often the job had been resubmitted before, as a batch system does after a failure; rounds start at 0 again then.
    submission: u64,
    /// The round's number, from 0.
    round: u64,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct End {
    pub t: f64,
    /// Its exit code, or the negative number of the signal.
    pub code: i32,
    /// True if its agent stopped it.
    pub stopped: bool,
}

/// A run as a series of attempts. Times are seconds since the Unix epoch.
#[derive(Debug, Default)]
pub struct History<'a> {
    /// Each agent's records, with times that never decrease.
    pub agents: BTreeMap<&'a str, Vec<(f64, &'a AgentEvent)>>,
    /// All worker processes, by the time of their first record.
    pub attempts: Vec<Attempt<'a>>,
    /// Inconsistencies in the files.
    pub notes: Vec<String>,
    /// The run goes on: processes without an end have none yet.
    pub goes_on: bool,
}

impl<'a> History<'a> {
    /// Reconstructs the history from the records of ranks and agents.
    pub fn of(events: &'a RunEvents) -> Self {
        let mut notes = vec![];
        let agents = of_agents(&events.agents, &mut notes);
        let attempts = attempts(&events.ranks, &agents, &mut notes);
        History { agents, attempts, notes, goes_on: false }
    }

    /// The times of the first and the last record; both 0 without records.
    pub fn bounds(&self) -> (f64, f64) {
        let agents = self.agents.values().flatten().map(|(t, _)| *t);
        let times = agents.chain(self.attempts.iter().flat_map(|attempt| [attempt.first(), attempt.last()]));
        let (began, ended) =
            times.fold((f64::INFINITY, 0.0), |(least, most): (f64, f64), t| (t.min(least), t.max(most)));
        if began.is_finite() { (began, ended) } else { (0.0, 0.0) }
    }

    /// The last record of a node, by its agent or its ranks.
    pub(crate) fn last_of_node(&self, node: &str) -> f64 {
        let agent = self.agents.get(node).and_then(|records| records.last()).map(|(t, _)| *t);
        let ranks = self.attempts.iter().filter(|attempt| attempt.node == Some(node)).map(Attempt::last);
        ranks.chain(agent).fold(0.0, f64::max)
    }
}

type AgentRecords<'a> = BTreeMap<&'a str, Vec<(f64, &'a AgentEvent)>>;

impl End {
    /// Returns true if it failed without being stopped.
    pub fn is_failure(self) -> bool {
        !self.stopped && self.code != 0
    }

    /// `SIGKILL`, `exit code 3`.
    pub fn status(self) -> String {
        let signal = self.code.checked_neg().filter(|signal| *signal > 0).map(signal_name);
        signal.unwrap_or_else(|| format!("exit code {}", self.code))
    }

    /// `ended by SIGKILL`, `ended with exit code 1`, `was stopped by its agent, SIGTERM`.
    pub fn manner(self) -> String {
        let link = match (self.stopped, self.code < 0) {
            (true, true) => "was stopped by its agent, ",
            (true, false) => "was stopped by its agent with ",
            (false, true) => "ended by ",
            (false, false) => "ended with ",
        };
        format!("{link}{}", self.status())
    }
}

impl Attempt<'_> {
    /// Its first record.
    pub fn first(&self) -> f64 {
        self.started.or(self.records.first().map(|record| record.0)).unwrap_or_default()
    }

    /// Its last record.
    pub fn last(&self) -> f64 {
        let heard = self.records.last().map_or(self.first(), |record| record.0.max(self.first()));
        self.ended.map_or(heard, |end| end.t.max(self.first()))
    }

    /// When it joined its group.
    pub fn joined(&self) -> Option<f64> {
        let start = self.records.iter().find(|(_, event)| matches!(event, Event::Start { .. }));
        start.map(|(t, _)| *t)
    }

    /// Its steps, with their times.
    pub fn steps(&self) -> impl DoubleEndedIterator<Item = (f64, (u64, u64))> {
        self.records.iter().filter_map(|(t, event)| Some((*t, step(event)?)))
    }

    /// The last fault that it recorded, unless steps follow it. A rank that ended well or was stopped, according to its agent,
    /// has survived all faults except those that it was asked to inject into itself.
    pub(crate) fn last_fault(&self) -> Option<(f64, &str)> {
        let survived = self.ended.is_some_and(|end| !end.is_failure());
        let of_interest = |event: &&Event| matches!(event, Event::Step { .. } | Event::Fault { .. });
        match self.records.iter().rfind(|(_, event)| of_interest(event))? {
            (t, Event::Fault { message }) if !survived || message.starts_with(INJECTED) => Some((*t, message)),
            _ => None,
        }
    }
}

/// The agents' records with corrected times; corrections are noted.
fn of_agents<'a>(agents: &'a BTreeMap<String, AgentLog>, notes: &mut Vec<String>) -> AgentRecords<'a> {
    let mut corrected = AgentRecords::new();
    for (node, log) in agents {
        let times = forward(log.records.iter().map(|record| record.t), &format!("the agent of {node}"), notes);
        corrected.insert(node, times.into_iter().zip(log.records.iter().map(|record| &record.event)).collect());
    }
    corrected
}

/// All processes, ordered by their first record.
fn attempts<'a>(
    ranks: &'a BTreeMap<usize, EventLog>,
    agents: &AgentRecords<'a>,
    notes: &mut Vec<String>,
) -> Vec<Attempt<'a>> {
    let mut attempts: Vec<Attempt<'a>> = agents.iter().flat_map(|(node, records)| started_by(node, records)).collect();
    attempts.sort_by(|one, other| one.first().total_cmp(&other.first()));
    for (rank, log) in ranks {
        for (index, written) in written_by(*rank, log, notes).into_iter().enumerate() {
            match started_as(&attempts, &written) {
                Some(place) => attempts[place].adopt(written),
                None => {
                    let round = written.generation.round.max(index as u64);
                    attempts.push(Attempt { generation: Generation { submission: 0, round }, ..written });
                }
            }
        }
    }
    attempts.sort_by(|one, other| one.first().total_cmp(&other.first()));
    attempts
}

/// The processes of one agent, without their own records.
fn started_by<'a>(node: &'a str, records: &[(f64, &'a AgentEvent)]) -> Vec<Attempt<'a>> {
    let mut attempts: Vec<Attempt<'a>> = vec![];
    let (mut rounds, mut last) = (BTreeMap::new(), None::<Generation>);
    for (t, event) in records {
        match **event {
            AgentEvent::Formed { round, attempt, .. } => {
                let formed = following(last, round);
                last = Some(formed);
                rounds.insert(attempt, formed);
            }
            AgentEvent::Started { attempt, rank, pid, .. } => {
                let generation = rounds.get(&attempt).copied().unwrap_or(Generation { submission: 0, round: attempt });
                let (node, pid, started) = (Some(node), Some(pid), Some(*t));
                attempts.push(Attempt { rank, node, generation, started, ended: None, records: vec![], pid });
            }
            AgentEvent::Ended { rank, pid, code, stopped, .. } => {
                let alive =
                    |attempt: &&mut Attempt<'_>| (attempt.rank, attempt.pid, attempt.ended) == (rank, Some(pid), None);
                if let Some(attempt) = attempts.iter_mut().rev().find(alive) {
                    attempt.ended = Some(End { t: *t, code, stopped });
                }
            }
            _ => {}
        }
    }
    attempts
}

/// The generation of a rendezvous in this round, following the last one of the same agent: rounds increase within one
/// submission.
fn following(last: Option<Generation>, round: u64) -> Generation {
    match last {
        Some(last) if round <= last.round => Generation { submission: last.submission + 1, round },
        last => Generation { submission: last.map_or(0, |last| last.submission), round },
    }
}

/// The processes that wrote one rank's file: each begins with a start event, or with a higher restart count.
fn written_by<'a>(rank: usize, log: &'a EventLog, notes: &mut Vec<String>) -> Vec<Attempt<'a>> {
    let times = forward(log.records.iter().map(|record| record.t), &format!("rank {rank}"), notes);
    let mut attempts: Vec<(u32, Attempt<'a>)> = vec![];
    for (at, (t, record)) in times.into_iter().zip(&log.records).enumerate() {
        let starts = |record: &Record| matches!(record.event, Event::Start { .. });
        // A process joins its group just before it starts.
        let joins = matches!(record.event, Event::Group { .. }) && log.records.get(at + 1).is_some_and(starts);
        let is_start = starts(record) || joins;
        let same = attempts.last().is_some_and(|(restart, attempt)| {
            *restart == record.restart && !(is_start && (attempt.pid.is_some() || attempt.ended.is_some()))
        });
        if !same {
            let generation = Generation { submission: 0, round: record.restart.into() };
            let (node, started, ended, pid) = (None, None, None, None);
            let attempt = Attempt { rank, node, generation, started, ended, records: vec![], pid };
            attempts.push((record.restart, attempt));
        }
        if let Some((_, attempt)) = attempts.last_mut() {
            attempt.hear(t, &record.event);
        }
    }
    attempts.into_iter().map(|(_, attempt)| attempt).collect()
}

/// The process, among those that agents started, whose own records are `written`.
fn started_as(attempts: &[Attempt<'_>], written: &Attempt<'_>) -> Option<usize> {
    let waiting =
        |attempt: &Attempt<'_>| attempt.rank == written.rank && attempt.started.is_some() && attempt.records.is_empty();
    let free = || (0..attempts.len()).filter(|index| waiting(&attempts[*index]));
    // Clocks of different hosts may differ; a rank and its agent on one host share theirs.
    let by_time =
        |index: &usize| attempts[*index].first() <= written.first() && written.first() <= attempts[*index].until();
    let same_pid = |index: &usize| written.pid.is_some() && attempts[*index].pid == written.pid;
    free()
        .find(|index| same_pid(index) && by_time(index))
        .or_else(|| free().find(same_pid))
        .or_else(|| free().find(by_time))
}

impl<'a> Attempt<'a> {
    fn hear(&mut self, t: f64, event: &'a Event) {
        match event {
            Event::Start { pid, .. } => self.pid = Some(*pid),
            Event::Exit { code } => self.ended = Some(End { t, code: *code, stopped: false }),
            _ => {}
        }
        self.records.push((t, event));
    }

    /// Merges the records of the same process. The agent's record of its end takes precedence over its own.
    fn adopt(&mut self, written: Attempt<'a>) {
        self.records = written.records;
        self.ended = self.ended.or(written.ended);
    }

    /// The latest time at which it may have written.
    fn until(&self) -> f64 {
        self.ended.map_or(f64::INFINITY, |end| end.t)
    }
}

/// The same times, made non-decreasing.
fn forward(times: impl Iterator<Item = f64>, whose: &str, notes: &mut Vec<String>) -> Vec<f64> {
    let (mut latest, mut back) = (0.0_f64, 0.0_f64);
    let corrected = times.map(|t| {
        back = back.max(latest - t);
        latest = latest.max(t.clamp(0.0, LATEST));
        latest
    });
    let corrected = corrected.collect();
    if back > 1e-3 {
        notes.push(format!("the clock of {whose} went back by {back:.3} s: its times are drawn too late there"));
    }
    corrected
}

#[cfg(test)]
mod tests {
    use super::{Event, History};
    use crate::testing::{FakeRun, NOON, start, started, step_of};

    #[test]
    fn knows_the_newest_process_of_a_rank_by_its_agent_or_by_itself() {
        let run = FakeRun::default().agent("a", 0.0, started(0, 1, 41)).agent("a", 9.0, started(1, 1, 42));
        let run = run.rank(1, 0, 1.0, start(2, 41)).rank(0, 0, 1.0, start(2, 40));
        assert_eq!([0, 1, 2].map(|rank| run.0.newest_process(rank)), [Some(40), Some(42), None]);
    }

    #[test]
    fn counts_a_process_from_the_group_that_it_joins_on() {
        let group = || Event::Group { world_size: 2, backend: "gloo".into(), reason: None };
        let run =
            FakeRun::default().rank(1, 0, 1.0, group()).rank(1, 0, 1.1, start(2, 41)).rank(1, 0, 2.0, step_of(0, 0));
        let run = run.rank(1, 0, 8.0, group()).rank(1, 0, 8.1, start(2, 42)).rank(1, 0, 9.0, step_of(0, 0));
        let history = History::of(&run.0);
        let times: Vec<_> =
            history.attempts.iter().map(|attempt| [attempt.first(), attempt.last()].map(|t| t - NOON)).collect();
        assert_eq!(times, [[1.0, 2.0], [8.0, 9.0]]);
    }

    #[test]
    fn counts_the_ranks_that_made_steps_and_those_of_the_last_start() {
        let run = FakeRun::default().rank(0, 0, 1.0, start(8, 1)).rank(0, 0, 2.0, step_of(0, 0));
        let run = run.rank(0, 1, 3.0, start(6, 2)).rank(0, 1, 4.0, start(3, 3)).rank(0, 1, 5.0, step_of(0, 1));
        let run = run.rank(0, 2, 6.0, start(3, 4)).rank(0, 2, 7.0, step_of(0, 2)).rank(0, 3, 8.0, start(5, 5));
        assert_eq!((run.0.world_sizes(), run.0.last_world_size()), (vec![8, 3], Some(5)));
        assert_eq!(FakeRun::default().0.last_world_size(), None);
    }
}
