//! The history of every rank over time: a pure function from event files to rows of spans and marks.

mod rows;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use lockstep_events::{AgentEvent, Event, VerdictRecord};
use serde::Serialize;

use crate::history::{History, Recovery, RunEvents};
use rows::Scene;

/// Ranks above this number are not expected unless a file names them.
const MOST_RANKS: usize = 65_536;

/// A run by the clocks of its hosts. All times are seconds since `began`, unless stated otherwise.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Timeline {
    /// The first event, in seconds since the Unix epoch.
    pub(crate) began: f64,
    /// From the first event to the last.
    pub(crate) seconds: f64,
    /// Sorted by name; ranks of unknown nodes come last.
    pub(crate) nodes: Vec<Node>,
    /// The cost of each failure, ordered by time.
    pub(crate) recoveries: Vec<Recovery>,
    /// Why ranks or launchers failed, as their launchers found, ordered by time.
    pub(crate) verdicts: Vec<Judged>,
    /// Inconsistencies in the files, where the picture may be wrong.
    pub(crate) notes: Vec<String>,
}

/// A launcher's verdict on a failure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Judged {
    pub(crate) at: f64,
    /// The agent's name for its node.
    pub(crate) node: String,
    #[serde(flatten)]
    pub(crate) verdict: VerdictRecord,
}

/// The ranks that one agent started.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Node {
    /// The agent's name for it; `None` if no agent wrote events.
    pub(crate) name: Option<String>,
    /// The agent's own events.
    pub(crate) marks: Vec<Mark>,
    /// Sorted by rank. A rank that moved to another node has a row on each.
    pub(crate) rows: Vec<Row>,
}

/// One rank on one node, through all its attempts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Row {
    /// Its number.
    pub(crate) rank: usize,
    /// Ordered by time, without overlap.
    pub(crate) spans: Vec<Span>,
    /// Ordered by time.
    pub(crate) marks: Vec<Mark>,
    /// Work that was lost and repeated.
    pub(crate) redone: Vec<Redone>,
}

/// A time during which a rank's state did not change.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Span {
    pub(crate) from: f64,
    pub(crate) to: f64,
    pub(crate) state: State,
    /// How often the rank had been started before, on this row.
    pub(crate) attempt: u32,
    /// A short description.
    pub(crate) detail: String,
}

/// The state of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    /// The process runs, but has not joined its group.
    Starting,
    /// It trains.
    Running,
    /// It is alive, but has made no progress for a long time.
    Stalled,
    /// It failed, and no agent has reacted yet.
    Dead,
    /// Its agent stopped it, since another rank had failed or the agent was asked to end.
    Stopped,
    /// Its agent is about to restart it.
    Restarting,
}

/// An event at one time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Mark {
    pub(crate) at: f64,
    pub(crate) kind: MarkKind,
    /// A short description.
    pub(crate) detail: String,
}

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MarkKind {
    /// A fault was injected, or the rank reported one.
    Fault,
    /// The rank failed.
    Died,
    /// A snapshot was saved.
    Snapshot,
    /// Training continues from a snapshot.
    Resumed,
    /// An epoch began.
    Epoch,
    /// The rank or the agent succeeded.
    Finished,
    /// Of an agent: the nodes completed a rendezvous.
    Formed,
    /// Of an agent: it restarts all its workers.
    Restarting,
    /// Of an agent: it received a signal.
    Signalled,
    /// Of an agent: it failed, or ended without a record.
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
    /// Draws the records of ranks and agents. What could not be read is noted, and the rest is drawn.
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
            verdicts: verdicts(&history, began),
            notes,
        }
    }

    /// All rows with the names of their nodes.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (Option<&str>, &Row)> {
        self.nodes.iter().flat_map(|node| node.rows.iter().map(|row| (node.name.as_deref(), row)))
    }
}

/// Without repetitions: of several verdicts that one agent gave in a row, the last counts, since it knew more.
fn verdicts(history: &History<'_>, began: f64) -> Vec<Judged> {
    let mut found: Vec<Judged> = Vec::new();
    for (node, records) in &history.agents {
        let mut after_another = false;
        for (t, event) in records {
            let AgentEvent::Verdict(verdict) = event else {
                after_another = false;
                continue;
            };
            if std::mem::replace(&mut after_another, true) {
                found.pop();
            }
            found.push(Judged { at: t - began, node: (*node).to_owned(), verdict: verdict.clone() });
        }
    }
    found.sort_by(|one, other| one.at.total_cmp(&other.at));
    found
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

/// Ranks that others mention, but that were never started.
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

/// Information that is missing from the files.
fn gaps(missing: &[usize], history: &History<'_>) -> Vec<String> {
    let (mut notes, attempts) = (vec![], &history.attempts);
    if history.agents.is_empty() && !attempts.is_empty() {
        notes.push("no agent wrote events: how a rank ended is known by its own words only".into());
    }
    if !missing.is_empty() {
        notes.push(format!("never started: {}", list(missing.iter().copied().collect())));
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
