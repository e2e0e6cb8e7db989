//! Reads the event files of a run. A damaged file is noted and left out; the others are still read.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::path::Path;

use lockstep_contract::events::{AgentEvent, AgentLog, Event, EventLog, EventsError, Record};

/// The event files of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunEvents {
    /// By rank.
    pub(crate) ranks: BTreeMap<usize, EventLog>,
    /// By node.
    pub(crate) agents: BTreeMap<String, AgentLog>,
    /// What cannot be read, one sentence each.
    pub(crate) unreadable: Vec<String>,
}

impl RunEvents {
    /// Reads all event files of `folder`.
    pub(crate) fn read(folder: &Path) -> Self {
        let mut unreadable = vec![];
        let agents = lockstep_contract::events::read_agents(folder).unwrap_or_else(|error| {
            unreadable.push(format!("the agents' events are left out: {}", chain(&error)));
            BTreeMap::new()
        });
        let ranks =
            lockstep_contract::events::read_folder(folder).unwrap_or_else(|_| one_by_one(folder, &mut unreadable));
        RunEvents { ranks, agents, unreadable }
    }

    /// All records of all ranks, rank by rank.
    pub(crate) fn records(&self) -> impl Iterator<Item = &Record> {
        self.ranks.values().flat_map(|log| &log.records)
    }

    /// The number of the process that was started last as `rank`: as its agent says or, where that writes no events, as it said
    /// itself.
    pub(crate) fn newest_process(&self, rank: usize) -> Option<i32> {
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

    /// The furthest step that any rank recorded: (epoch, step in it).
    pub(crate) fn last_step(&self) -> Option<(u64, u64)> {
        self.records().filter_map(|record| step(&record.event)).max()
    }
}

/// (epoch, step in it), of a step.
pub(super) fn step(event: &Event) -> Option<(u64, u64)> {
    match event {
        Event::Step { epoch, step, .. } => Some((*epoch, *step)),
        _ => None,
    }
}

/// The files of the ranks without those that are damaged.
fn one_by_one(folder: &Path, unreadable: &mut Vec<String>) -> BTreeMap<usize, EventLog> {
    let mut logs = BTreeMap::new();
    let entries = std::fs::read_dir(folder).map_err(|error| {
        unreadable.push(format!("no event is drawn: cannot read {}: {error}", folder.display()));
    });
    for path in entries.into_iter().flatten().flatten().map(|entry| entry.path()) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let rank = name.strip_prefix("rank-").and_then(|name| name.strip_suffix(".jsonl"));
        let Some(rank) = rank.and_then(|rank| rank.parse().ok()) else { continue };
        match lockstep_contract::events::read(&path) {
            Ok(log) => drop(logs.insert(rank, log)),
            Err(error) => unreadable.push(format!("rank {rank} is left out: {}", chain(&error))),
        }
    }
    logs
}

fn chain(error: &EventsError) -> String {
    error.source().map_or(error.to_string(), |cause| format!("{error}: {cause}"))
}

#[cfg(test)]
mod tests {
    use crate::history::testing::{FakeRun, start, started};

    #[test]
    fn knows_the_newest_process_of_a_rank_by_its_agent_or_by_itself() {
        let run = FakeRun::default().agent("a", 0.0, started(0, 1, 41)).agent("a", 9.0, started(1, 1, 42));
        let run = run.rank(1, 0, 1.0, start(2, 41)).rank(0, 0, 1.0, start(2, 40));
        assert_eq!([0, 1, 2].map(|rank| run.0.newest_process(rank)), [Some(40), Some(42), None]);
    }
}
