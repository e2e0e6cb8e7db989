//! What became of every rank over time: a pure function from event files to rows of spans and marks.

mod rows;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use lockstep_events::{AgentEvent, Event};
use serde::Serialize;

use crate::history::{History, Recovery, RunEvents};
use rows::Scene;

/// Ranks beyond this many are not looked for where no file names them.
const MOST_RANKS: usize = 65_536;

/// A run, seen by the clocks of its hosts. All times are seconds since `began`, unless said otherwise.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Timeline {
    /// The first event, in seconds since the Unix epoch.
    pub(crate) began: f64,
    /// From the first event to the last.
    pub(crate) seconds: f64,
    /// By name; ranks of no known node come last.
    pub(crate) nodes: Vec<Node>,
    /// What each failure cost, in order of time.
    pub(crate) recoveries: Vec<Recovery>,
    /// What in the files is odd, so that the picture may be wrong there.
    pub(crate) notes: Vec<String>,
}

/// The ranks that one agent started.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Node {
    /// As the agent calls it; none if no agent wrote events.
    pub(crate) name: Option<String>,
    /// What the agent itself did.
    pub(crate) marks: Vec<Mark>,
    /// By rank. A rank that moved to another node has a row on each.
    pub(crate) rows: Vec<Row>,
}

/// One rank on one node, through all its starts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Row {
    /// Its number.
    pub(crate) rank: usize,
    /// In order of time, without overlap.
    pub(crate) spans: Vec<Span>,
    /// In order of time.
    pub(crate) marks: Vec<Mark>,
    /// Work that was done before and lost.
    pub(crate) redone: Vec<Redone>,
}

/// A time during which a rank's state stayed the same.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Span {
    pub(crate) from: f64,
    pub(crate) to: f64,
    pub(crate) state: State,
    /// How often the rank had been started before, on this row.
    pub(crate) attempt: u32,
    /// What a reader wants to know of it, in a few words.
    pub(crate) detail: String,
}

/// What a rank was doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    /// The process runs, and has not joined its group.
    Starting,
    /// It trains.
    Running,
    /// It lives, and has made no progress for long.
    Stalled,
    /// It ended by itself, and not well; nobody has acted on that yet.
    Dead,
    /// Its agent ended it, since another rank had failed or the agent was asked to end.
    Stopped,
    /// Its agent is about to start it again.
    Restarting,
}

/// Something that happened at one time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Mark {
    pub(crate) at: f64,
    pub(crate) kind: MarkKind,
    /// What a reader wants to know of it, in a few words.
    pub(crate) detail: String,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MarkKind {
    /// A fault was injected, or the rank told of one.
    Fault,
    /// The rank ended by itself, and not well.
    Died,
    /// A snapshot was saved.
    Snapshot,
    /// Training goes on from a snapshot.
    Resumed,
    /// An epoch began.
    Epoch,
    /// The rank or the agent ended well.
    Finished,
    /// Of an agent: the nodes agreed on a group.
    Formed,
    /// Of an agent: it starts all its workers again.
    Restarting,
    /// Of an agent: it was sent a signal.
    Signalled,
    /// Of an agent: it ended, and not well, or without a word.
    Lost,
}

/// Steps that a rank trained a second time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Redone {
    pub(crate) from: f64,
    pub(crate) to: f64,
    /// How many.
    pub(crate) steps: u64,
}

impl Timeline {
    /// Draws what ranks and agents wrote. What could not be read is noted, and the rest is drawn.
    pub(crate) fn of(events: &RunEvents) -> Self {
        let history = History::of(events);
        let (began, ended) = history.bounds();
        let missing = missing(events, &history);
        let mut notes = [events.unreadable.clone(), torn(events), history.notes.clone()].concat();
        notes.extend(gaps(&missing, &history));
        Timeline {
            began,
            seconds: ended - began,
            nodes: Scene { began, ended, history: &history }.nodes(&missing),
            recoveries: history.recoveries(),
            notes,
        }
    }

    /// All rows with the names of their nodes.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (Option<&str>, &Row)> {
        self.nodes.iter().flat_map(|node| node.rows.iter().map(|row| (node.name.as_deref(), row)))
    }
}

fn torn(events: &RunEvents) -> Vec<String> {
    let ranks = events.ranks.iter().map(|(rank, log)| (format!("rank {rank}"), &log.torn));
    let agents = events.agents.iter().map(|(node, log)| (format!("the agent of {node}"), &log.torn));
    let torn = ranks.chain(agents).filter(|(_, torn)| !torn.is_empty());
    torn.map(|(whose, torn)| {
        let (first, more) = (torn[0], torn.len() - 1);
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        format!("an event of {whose} is torn (line {first}{more}): its writer was killed or its disk was full")
    })
    .collect()
}

/// Ranks that others speak of, and that nobody started.
fn missing(events: &RunEvents, history: &History<'_>) -> Vec<usize> {
    let formed = events.agents.values().flat_map(|log| &log.records).filter_map(|record| match record.event {
        AgentEvent::Formed { world_size, .. } => Some(world_size),
        _ => None,
    });
    let joined = events.records().filter_map(|record| match record.event {
        Event::Start { world_size, .. } => Some(world_size),
        _ => None,
    });
    let size = formed.chain(joined).max().unwrap_or(0).min(MOST_RANKS);
    let seen: BTreeSet<usize> = history.attempts.iter().map(|attempt| attempt.rank).collect();
    (0..size).filter(|rank| !seen.contains(rank)).collect()
}

/// What the files do not tell.
fn gaps(missing: &[usize], history: &History<'_>) -> Vec<String> {
    let (mut notes, attempts) = (vec![], &history.attempts);
    if history.agents.is_empty() && !attempts.is_empty() {
        notes.push("no agent wrote events: how a rank ended is known by its own words only".into());
    }
    if !missing.is_empty() {
        notes.push(format!("nobody started {}", list(missing.iter().copied().collect())));
    }
    let heard = attempts.iter().filter(|attempt| !attempt.records.is_empty());
    let heard: BTreeSet<usize> = heard.map(|attempt| attempt.rank).collect();
    let silent: BTreeSet<usize> =
        attempts.iter().map(|attempt| attempt.rank).filter(|rank| !heard.contains(rank)).collect();
    if !silent.is_empty() {
        notes.push(format!("without events of their own: {}", list(silent)));
    }
    notes
}

/// `rank 3`, `ranks 3, 4, 5`; at most eight by number.
fn list(ranks: BTreeSet<usize>) -> String {
    let shown: Vec<String> = ranks.iter().take(8).map(usize::to_string).collect();
    let more = ranks.len() - shown.len();
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    format!("rank{} {}{more}", if ranks.len() == 1 { "" } else { "s" }, shown.join(", "))
}
