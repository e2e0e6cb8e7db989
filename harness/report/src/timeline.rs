//! The history of every rank over time: rows of spans and marks, and what one rank on one node did, from its processes.

use std::collections::BTreeMap;

use lockstep_contract::events::{AgentEvent, Event, VerdictRecord};
use lockstep_contract::snapshot_request::SAVED;
use lockstep_process::signal_name;
use serde::Serialize;

use crate::formatting::counted;
use crate::history::{Attempt, End, Generation, History};
use crate::recovery::Recovery;

/// A run by the clocks of its hosts. All times are seconds since `began`, unless stated otherwise.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Timeline {
    /// The first event, in seconds since the Unix epoch.
    pub began: f64,
    /// From the first event to the last.
    pub seconds: f64,
    /// Sorted by name; ranks of unknown nodes come last.
    pub nodes: Vec<Node>,
    /// The cost of each failure, ordered by time.
    pub(crate) recoveries: Vec<Recovery>,
    /// Why ranks or launchers failed, as their launchers found, ordered by time.
    pub(crate) verdicts: Vec<Judged>,
    /// Inconsistencies in the files, where the picture may be wrong.
    pub notes: Vec<String>,
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
pub struct Node {
    /// The agent's name for it; `None` if no agent wrote events.
    pub name: Option<String>,
    /// The agent's own events.
    pub marks: Vec<Mark>,
    /// Sorted by rank. A rank that moved to another node has a row on each.
    pub rows: Vec<Row>,
}

/// One rank on one node, through all its attempts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Its number.
    pub rank: usize,
    /// Ordered by time, without overlap.
    pub spans: Vec<Span>,
    /// Ordered by time.
    pub marks: Vec<Mark>,
    /// Work that was lost and repeated.
    pub(crate) redone: Vec<Redone>,
}

/// A time during which a rank's state did not change.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Span {
    pub from: f64,
    pub to: f64,
    pub state: State,
    /// How often the rank had been started before, on this row.
    pub attempt: u32,
    /// A short description.
    pub detail: String,
}

/// The state of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
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
pub struct Mark {
    pub at: f64,
    pub kind: MarkKind,
    /// A short description.
    pub detail: String,
}

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MarkKind {
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
    pub fn rows(&self) -> impl Iterator<Item = (Option<&str>, &Row)> {
        self.nodes.iter().flat_map(|node| node.rows.iter().map(|row| (node.name.as_deref(), row)))
    }
}

/// A pause between steps counts as a stall if it takes at least this many seconds, and this many times the usual pause.
const STALL: (f64, f64) = (1.0, 10.0);

/// The generation that did each step first; a step is (epoch, step in it).
type FirstDone = BTreeMap<(u64, u64), Generation>;

/// The data that all rows share.
pub(crate) struct RowContext<'a> {
    /// The times of the first and the last record, in seconds since the Unix epoch.
    pub(crate) began: f64,
    pub(crate) ended: f64,
    pub(crate) history: &'a History<'a>,
}

impl RowContext<'_> {
    /// All nodes with their rows; `missing` ranks never started and have empty ones.
    pub(crate) fn nodes(&self, missing: &[usize]) -> Vec<Node> {
        let mut places: BTreeMap<(Option<&str>, usize), Vec<&Attempt<'_>>> = BTreeMap::new();
        self.history
            .attempts
            .iter()
            .for_each(|attempt| places.entry((attempt.node, attempt.rank)).or_default().push(attempt));
        for rank in missing {
            places.entry((None, *rank)).or_default();
        }
        let mut nodes: BTreeMap<Option<&str>, Node> = BTreeMap::new();
        for name in self.history.agents.keys() {
            nodes.insert(Some(name), Node { name: Some((*name).to_owned()), marks: self.agent(name), rows: vec![] });
        }
        let (pause, first_done) = (self.longest_pause(), self.first_done());
        for ((name, rank), attempts) in places {
            let row = self.row(rank, &attempts, pause, &first_done);
            let node = nodes.entry(name).or_insert_with(|| Node { name: None, marks: vec![], rows: vec![] });
            node.rows.push(row);
        }
        let unknown = nodes.remove(&None);
        nodes.into_values().chain(unknown).collect()
    }

    /// A rank with this many seconds between two events counts as stalled.
    fn longest_pause(&self) -> f64 {
        let mut pauses: Vec<f64> = vec![];
        for attempt in &self.history.attempts {
            let times: Vec<f64> = attempt.steps().map(|(t, _)| t).collect();
            pauses.extend(times.windows(2).map(|pair| pair[1] - pair[0]));
        }
        pauses.sort_by(f64::total_cmp);
        let usual = pauses.get(pauses.len() / 2).copied().unwrap_or_default();
        STALL.0.max(STALL.1 * usual)
    }

    /// The generation in which each step was done first.
    fn first_done(&self) -> FirstDone {
        let mut first = FirstDone::new();
        for attempt in &self.history.attempts {
            for (_, step) in attempt.steps() {
                let generation = first.entry(step).or_insert(attempt.generation);
                *generation = attempt.generation.min(*generation);
            }
        }
        first
    }

    fn row(&self, rank: usize, attempts: &[&Attempt<'_>], pause: f64, first_done: &FirstDone) -> Row {
        let mut row = Row { rank, spans: vec![], marks: vec![], redone: vec![] };
        for (index, attempt) in attempts.iter().enumerate() {
            let next = self.next_on_node(attempt, attempts.get(index + 1).copied()).map(Attempt::first);
            let mut pen = Pen { context: self, row: &mut row, number: index as u32 };
            pen.attempt(attempt, next, pause);
            pen.redone(attempt, first_done);
        }
        row.marks.sort_by(|one, other| one.at.total_cmp(&other.at));
        row
    }

    /// What followed an attempt on its node: the rank's `own` next attempt, or an earlier one of other ranks, to which the node went over.
    fn next_on_node<'b>(&'b self, attempt: &Attempt<'_>, own: Option<&'b Attempt<'b>>) -> Option<&'b Attempt<'b>> {
        let later = |other: &&Attempt<'_>| other.node == attempt.node && other.generation > attempt.generation;
        let next = self.history.attempts.iter().filter(later).min_by_key(|other| other.generation);
        let others =
            next.filter(|next| attempt.node.is_some() && own.is_none_or(|own| own.generation > next.generation));
        others.or(own)
    }

    /// When an agent decided to restart its workers, between two times.
    fn restart(&self, node: &str, from: f64, to: f64) -> Option<f64> {
        let mut records = self.history.agents.get(node)?.iter();
        let decides = |(t, event): &&(f64, &AgentEvent)| {
            (from..=to).contains(t) && matches!(event, AgentEvent::Restarting { .. })
        };
        records.find(decides).map(|(t, _)| *t)
    }

    fn agent(&self, node: &str) -> Vec<Mark> {
        let records = self.history.agents.get(node).map_or(&[][..], Vec::as_slice);
        let mut marks: Vec<Mark> = records.iter().filter_map(|(t, event)| self.agent_mark(*t, event)).collect();
        let at_end = [MarkKind::Finished, MarkKind::Lost];
        if !self.history.goes_on && !marks.iter().any(|mark| at_end.contains(&mark.kind)) {
            let detail = "no more events from this agent: it was lost, or still runs".into();
            marks.push(Mark { at: self.history.last_of_node(node) - self.began, kind: MarkKind::Lost, detail });
        }
        marks
    }

    fn agent_mark(&self, t: f64, event: &AgentEvent) -> Option<Mark> {
        let (kind, detail) = match event {
            AgentEvent::Formed { round, nodes, world_size, group_rank, .. } => {
                let (nodes, ranks) = (counted(*nodes, "node"), counted(*world_size, "rank"));
                (MarkKind::Formed, format!("round {round}: {nodes} with {ranks}, this is node {group_rank}"))
            }
            AgentEvent::Restarting { restarts_left, reason, .. } => {
                (MarkKind::Restarting, format!("{reason}; restarts left: {restarts_left}"))
            }
            AgentEvent::Signalled { signal } => (MarkKind::Signalled, format!("sent {}", signal_name(*signal))),
            AgentEvent::Requeued { count, reason } => {
                (MarkKind::Restarting, format!("start {} of the scheduler's job: {reason}", count + 1))
            }
            AgentEvent::TimeLimit { seconds_left, source } => (
                MarkKind::Signalled,
                format!("{seconds_left:.0} s before the job's end ({source}): asks for a snapshot"),
            ),
            AgentEvent::Finished { code } if *code == i32::from(SAVED) => {
                (MarkKind::Finished, "the workers had saved a snapshot: exit code 75".into())
            }
            AgentEvent::Finished { code: 0 } => (MarkKind::Finished, "the agent ended well".into()),
            AgentEvent::Finished { code } => (MarkKind::Lost, format!("the agent ended with exit code {code}")),
            _ => return None,
        };
        Some(Mark { at: t - self.began, kind, detail })
    }
}

/// Draws one attempt after the other onto a row.
struct Pen<'a> {
    context: &'a RowContext<'a>,
    row: &'a mut Row,
    number: u32,
}

impl Pen<'_> {
    fn attempt(&mut self, attempt: &Attempt<'_>, next: Option<f64>, pause: f64) {
        // If two attempts overlap, the later one is drawn.
        let until = next.unwrap_or(f64::INFINITY);
        let end = attempt.last().min(until);
        let heard = || attempt.records.first().map(|record| record.0);
        let joined = attempt.joined().or_else(heard).unwrap_or(end).max(attempt.first()).min(end);
        if attempt.started.is_some() {
            let waits = if attempt.records.is_empty() { "never joined its group" } else { "joins its group" };
            self.span(attempt.first(), joined, State::Starting, waits.into());
        }
        self.running(attempt, joined, end, pause);
        attempt.records.iter().for_each(|(t, event)| self.mark(*t, event));
        self.end(attempt, end, next);
    }

    /// The states between joining and ending, with its stalls.
    fn running(&mut self, attempt: &Attempt<'_>, joined: f64, end: f64, pause: f64) {
        let mut steps = 0;
        let (mut from, mut last) = (joined, joined);
        let words = attempt.records.iter().map(|(t, event)| (*t, Some(*event))).chain([(end, None)]);
        for (t, event) in words {
            let t = t.clamp(last, end.max(last));
            if steps > 0 && t - last >= pause {
                self.span(from, last, State::Running, counted(steps, "step"));
                self.span(last, t, State::Stalled, format!("no event for {:.1} s", t - last));
                (from, steps) = (t, 0);
            }
            last = t;
            steps += usize::from(matches!(event, Some(Event::Step { .. })));
        }
        self.span(from, end, State::Running, counted(steps, "step"));
    }

    fn mark(&mut self, t: f64, event: &Event) {
        let (kind, detail) = match event {
            Event::Epoch { epoch, steps, .. } => {
                (MarkKind::Epoch, format!("epoch {epoch} begins, {}", counted(*steps as usize, "step")))
            }
            Event::Snapshot { epoch, step, path, seconds, .. } => {
                (MarkKind::Snapshot, format!("saved for epoch {epoch} step {step} in {seconds:.3} s: {path}"))
            }
            Event::Resume { epoch, step, path } => {
                (MarkKind::Resumed, format!("resumed at epoch {epoch} step {step} from {path}"))
            }
            Event::Fault { message } => (MarkKind::Fault, message.clone()),
            _ => return,
        };
        self.put(t, kind, detail);
    }

    /// How it ended, and the state of its rank until `next`.
    fn end(&mut self, attempt: &Attempt<'_>, end: f64, next: Option<f64>) {
        let (state, detail) = match attempt.ended {
            Some(End { code: 0, stopped: false, .. }) => return self.put(end, MarkKind::Finished, "finished".into()),
            Some(known) if known.stopped => (State::Stopped, known.manner()),
            Some(known) => (State::Dead, known.manner()),
            None if self.context.history.goes_on && next.is_none() => return,
            None => (State::Dead, "no more events from it".to_owned()),
        };
        if state == State::Dead {
            self.put(end, MarkKind::Died, detail.clone());
        }
        let until = next.unwrap_or(self.context.ended).max(end);
        let restart = attempt.node.and_then(|node| self.context.restart(node, end, until)).unwrap_or(until);
        self.span(end, restart, state, detail);
        self.span(restart, until, State::Restarting, "waits to be started again".into());
    }

    fn redone(&mut self, attempt: &Attempt<'_>, first_done: &FirstDone) {
        let began = self.context.began;
        let mut last = attempt.first();
        let mut open: Option<Redone> = None;
        for (t, event) in &attempt.records {
            if let Event::Step { epoch, step, .. } = event {
                if first_done.get(&(*epoch, *step)).is_some_and(|generation| *generation < attempt.generation) {
                    let redone = open.get_or_insert(Redone { from: last - began, to: 0.0, steps: 0 });
                    (redone.to, redone.steps) = (t.max(last) - began, redone.steps + 1);
                } else {
                    self.row.redone.extend(open.take());
                }
            }
            last = t.max(last);
        }
        self.row.redone.extend(open);
    }

    fn span(&mut self, from: f64, to: f64, state: State, detail: String) {
        let began = self.context.began;
        if to > from {
            self.row.spans.push(Span { from: from - began, to: to - began, state, attempt: self.number, detail });
        }
    }

    fn put(&mut self, t: f64, kind: MarkKind, detail: String) {
        self.row.marks.push(Mark { at: t - self.context.began, kind, detail });
    }
}
