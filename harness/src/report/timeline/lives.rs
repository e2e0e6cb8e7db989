//! Worker processes, pieced together from what agents and ranks wrote about them.
//!
//! An agent tells when a process began and how it ended, the rank itself what it did. The two meet by rank and process
//! id, else by time: a worker behind a wrapper has another id than the process that the agent started.

use std::collections::BTreeMap;

use lockstep_events::{AgentEvent, AgentLog, Event, EventLog};

/// Times beyond this many seconds since the Unix epoch (the year 5138) are no times.
const LATEST: f64 = 1e11;

/// One worker process. Times are seconds since the Unix epoch and never go backwards.
#[derive(Debug)]
pub(super) struct Life<'a> {
    pub(super) rank: usize,
    /// The node of the agent that started it.
    pub(super) node: Option<&'a str>,
    /// Which agreement of the nodes it belongs to, counted from 0.
    pub(super) generation: u64,
    /// When its agent started it.
    pub(super) started: Option<f64>,
    /// How it ended, as its agent saw it or it said itself.
    pub(super) ended: Option<End>,
    /// What it wrote.
    pub(super) records: Vec<(f64, &'a Event)>,
    pid: Option<u32>,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct End {
    pub(super) t: f64,
    /// Its exit code, or minus the signal's number.
    pub(super) code: i32,
    /// Its agent had asked it to.
    pub(super) stopped: bool,
}

/// What an agent wrote, with times that never go backwards.
pub(super) type AgentRecords<'a> = BTreeMap<&'a str, Vec<(f64, &'a AgentEvent)>>;

impl End {
    /// By itself, and not well.
    pub(super) fn is_failure(self) -> bool {
        !self.stopped && self.code != 0
    }
}

impl Life<'_> {
    /// When it is first heard of.
    pub(super) fn first(&self) -> f64 {
        self.started.or(self.records.first().map(|record| record.0)).unwrap_or_default()
    }

    /// When it is last heard of.
    pub(super) fn last(&self) -> f64 {
        let heard = self.records.last().map_or(self.first(), |record| record.0.max(self.first()));
        self.ended.map_or(heard, |end| end.t.max(self.first()))
    }

    /// Its steps, with their times.
    pub(super) fn steps(&self) -> impl Iterator<Item = (f64, (u64, u64))> {
        self.records.iter().filter_map(|(t, event)| match event {
            Event::Step { epoch, step, .. } => Some((*t, (*epoch, *step))),
            _ => None,
        })
    }

    /// The last fault that it told of, if it did no step after it.
    pub(super) fn last_fault(&self) -> Option<(f64, &str)> {
        let of_interest = |event: &&Event| matches!(event, Event::Step { .. } | Event::Fault { .. });
        match self.records.iter().rfind(|(_, event)| of_interest(event))? {
            (t, Event::Fault { message }) => Some((*t, message)),
            _ => None,
        }
    }
}

/// The times of the agents' records, mended; what had to be mended is noted.
pub(super) fn of_agents<'a>(agents: &'a BTreeMap<String, AgentLog>, notes: &mut Vec<String>) -> AgentRecords<'a> {
    let mut mended = AgentRecords::new();
    for (node, log) in agents {
        let times = forward(log.records.iter().map(|record| record.t), &format!("the agent of {node}"), notes);
        mended.insert(node, times.into_iter().zip(log.records.iter().map(|record| &record.event)).collect());
    }
    mended
}

/// All processes, by their first word.
pub(super) fn lives<'a>(
    ranks: &'a BTreeMap<usize, EventLog>,
    agents: &AgentRecords<'a>,
    notes: &mut Vec<String>,
) -> Vec<Life<'a>> {
    let mut lives: Vec<Life<'a>> = agents.iter().flat_map(|(node, records)| started_by(node, records)).collect();
    lives.sort_by(|one, other| one.first().total_cmp(&other.first()));
    for (rank, log) in ranks {
        for (index, told) in told_by(*rank, log, notes).into_iter().enumerate() {
            match home(&lives, &told) {
                Some(place) => lives[place].adopt(told),
                None => lives.push(Life { generation: told.generation.max(index as u64), ..told }),
            }
        }
    }
    lives.sort_by(|one, other| one.first().total_cmp(&other.first()));
    lives
}

/// The processes of one agent, without what they wrote themselves.
fn started_by<'a>(node: &'a str, records: &[(f64, &'a AgentEvent)]) -> Vec<Life<'a>> {
    let mut lives: Vec<Life<'a>> = vec![];
    let mut rounds = BTreeMap::new();
    for (t, event) in records {
        match **event {
            AgentEvent::Formed { round, attempt, .. } => drop(rounds.insert(attempt, round)),
            AgentEvent::Started { attempt, rank, pid, .. } => {
                let generation = rounds.get(&attempt).copied().unwrap_or(attempt);
                let (node, pid, started) = (Some(node), Some(pid), Some(*t));
                lives.push(Life { rank, node, generation, started, ended: None, records: vec![], pid });
            }
            AgentEvent::Ended { rank, pid, code, stopped, .. } => {
                let alive = |life: &&mut Life<'_>| (life.rank, life.pid, life.ended) == (rank, Some(pid), None);
                if let Some(life) = lives.iter_mut().rev().find(alive) {
                    life.ended = Some(End { t: *t, code, stopped });
                }
            }
            _ => {}
        }
    }
    lives
}

/// The processes that wrote one rank's file: each starts anew, or was restarted more often.
fn told_by<'a>(rank: usize, log: &'a EventLog, notes: &mut Vec<String>) -> Vec<Life<'a>> {
    let times = forward(log.records.iter().map(|record| record.t), &format!("rank {rank}"), notes);
    let mut lives: Vec<(u32, Life<'a>)> = vec![];
    for (t, record) in times.into_iter().zip(&log.records) {
        let is_start = matches!(record.event, Event::Start { .. });
        let same = lives.last().is_some_and(|(restart, life)| {
            *restart == record.restart && !(is_start && (life.pid.is_some() || life.ended.is_some()))
        });
        if !same {
            let generation = u64::from(record.restart);
            let (node, started, ended, pid) = (None, None, None, None);
            let life = Life { rank, node, generation, started, ended, records: vec![], pid };
            lives.push((record.restart, life));
        }
        if let Some((_, life)) = lives.last_mut() {
            life.hear(t, &record.event);
        }
    }
    lives.into_iter().map(|(_, life)| life).collect()
}

/// The process among those that agents started whose own words are `told`.
fn home(lives: &[Life<'_>], told: &Life<'_>) -> Option<usize> {
    let waiting = |life: &Life<'_>| life.rank == told.rank && life.started.is_some() && life.records.is_empty();
    let free = || (0..lives.len()).filter(|index| waiting(&lives[*index]));
    // Two hosts' clocks may differ; one host's rank and agent share theirs.
    let by_time = |index: &usize| lives[*index].first() <= told.first() && told.first() <= lives[*index].until();
    let same_pid = |index: &usize| told.pid.is_some() && lives[*index].pid == told.pid;
    free()
        .find(|index| same_pid(index) && by_time(index))
        .or_else(|| free().find(same_pid))
        .or_else(|| free().find(by_time))
}

impl<'a> Life<'a> {
    fn hear(&mut self, t: f64, event: &'a Event) {
        match event {
            Event::Start { pid, .. } => self.pid = Some(*pid),
            Event::Exit { code } => self.ended = Some(End { t, code: *code, stopped: false }),
            _ => {}
        }
        self.records.push((t, event));
    }

    /// Takes the words of the same process. What its agent saw of its end counts more than what it said before.
    fn adopt(&mut self, told: Life<'a>) {
        self.records = told.records;
        self.ended = self.ended.or(told.ended);
    }

    /// When it can have written last.
    fn until(&self) -> f64 {
        self.ended.map_or(f64::INFINITY, |end| end.t)
    }
}

/// The same times, none before the one before it.
fn forward(times: impl Iterator<Item = f64>, whose: &str, notes: &mut Vec<String>) -> Vec<f64> {
    let (mut latest, mut back) = (0.0_f64, 0.0_f64);
    let mended = times.map(|t| {
        back = back.max(latest - t);
        latest = latest.max(t.clamp(0.0, LATEST));
        latest
    });
    let mended = mended.collect();
    if back > 1e-3 {
        notes.push(format!("the clock of {whose} went back by {back:.3} s: its times are drawn too late there"));
    }
    mended
}
