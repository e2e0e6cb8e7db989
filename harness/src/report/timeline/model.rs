//! The parts of a timeline.

use lockstep_contract::events::VerdictRecord;
use serde::Serialize;

use crate::history::Recovery;

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
    /// All rows with the names of their nodes.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (Option<&str>, &Row)> {
        self.nodes.iter().flat_map(|node| node.rows.iter().map(|row| (node.name.as_deref(), row)))
    }
}
