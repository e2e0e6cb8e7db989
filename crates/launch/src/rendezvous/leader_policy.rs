//! What the leader does next: a pure function of the time, its draft of the state, and its observations.
//!
//! The leader grants requests in a draft and writes the draft to the store. Changes that a node waits for are written
//! immediately. Changes that only accumulate (nodes that arrive, nodes that succeed) are written when they have doubled
//! the group, or when a poll interval has passed. So all writes of one gathering together are only a few times larger
//! than the last one.

use std::time::Duration;

use super::node::{Node, NodeId};
use super::options::Options;
use super::peers::Peers;
use super::reason::Reason;
use super::request::Request;
use super::state::{Cause, RoundPhase, State};

/// In a group of at most this size every write is announced.
const SMALL: usize = 16;

/// The state as the leader wants it, and how it differs from the state in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// The state to write.
    pub state: State,
    /// Number of accumulated changes that have not been written.
    added: usize,
    /// The part of the last written state that others wait for.
    written: Mark,
    written_at: Duration,
    /// The time since which the gathering of this round has had enough members.
    enough: Option<(u64, Duration)>,
}

/// The part of the state that others wait for.
type Mark = (u64, u8, Option<NodeId>, Option<(NodeId, usize)>, Option<(NodeId, usize)>);

/// An action of the leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaderAction {
    /// Write the draft, then look again. With `news`, announce the change to all nodes.
    Write {
        /// Whether to announce it.
        news: bool,
    },
    /// Look again after a request, when a heartbeat may have stopped, or at this time at the latest.
    Wait {
        /// When there is something to do even if nothing changes.
        until: Option<Duration>,
    },
    /// There is nothing left to lead, or another node leads.
    End,
}

impl Draft {
    /// The draft of a leader that has just read or written `state`.
    #[must_use]
    pub fn new(state: State, now: Duration) -> Self {
        Draft { written: mark(&state), state, added: 0, written_at: now, enough: None }
    }

    /// Grants a request.
    pub fn grant(&mut self, request: Request) {
        let before = self.size();
        self.change(|state| state.granting(request));
        self.added += usize::from(self.size() != before);
    }

    /// Records that the store holds the draft now.
    pub fn wrote(&mut self, now: Duration) {
        (self.added, self.written, self.written_at) = (0, mark(&self.state), now);
    }

    fn change(&mut self, step: impl FnOnce(State) -> State) {
        let job = self.state.job.clone();
        self.state = step(std::mem::replace(&mut self.state, State::empty(job)));
    }

    fn size(&self) -> (usize, usize, usize) {
        (self.state.arrived(), self.state.waiting.len(), self.state.done().len())
    }

    /// Removes lost nodes, refuses nodes whose rank is taken, and forms the round when it is time; then returns what to
    /// do, and why. `me` leads.
    pub fn decide(&mut self, now: Duration, me: NodeId, peers: &Peers, options: &Options) -> (LeaderAction, Reason) {
        if self.state.is_final() {
            return (
                if self.pressing() { LeaderAction::Write { news: true } } else { LeaderAction::End },
                Reason::Found,
            );
        }
        let removed = self.remove_lost(me, peers.all_lost(now, options));
        self.refuse(me, peers);
        let (until, reason) = self.gather(now, options);
        let next = self.write_or_wait(now, until, options);
        match &self.state.leader {
            Some(leader) if leader.id == me => (next, removed.unwrap_or(reason)),
            _ if self.pressing() => (LeaderAction::Write { news: true }, Reason::Wanted),
            _ => (LeaderAction::End, Reason::Found),
        }
    }

    fn write_or_wait(&self, now: Duration, until: Option<Duration>, options: &Options) -> LeaderAction {
        let people = self.state.members.len() + self.state.waiting.len();
        let due = self.written_at + options.poll();
        match self.pressing() {
            true => LeaderAction::Write { news: true },
            false if self.added > 0 && (2 * self.added >= people || now >= due) => {
                LeaderAction::Write { news: people <= SMALL }
            }
            false if self.added > 0 => LeaderAction::Wait { until: Some(until.map_or(due, |until| until.min(due))) },
            false => LeaderAction::Wait { until },
        }
    }

    fn pressing(&self) -> bool {
        mark(&self.state) != self.written
    }

    fn remove_lost(&mut self, me: NodeId, mut lost: Vec<(NodeId, String)>) -> Option<Reason> {
        lost.retain(|(id, _)| *id != me && self.state.node(*id).is_some() && !self.state.done().contains(id));
        if lost.is_empty() {
            return None;
        }
        let named = |(id, why): &(NodeId, String)| Some((self.state.node(*id)?.clone(), why.clone()));
        let nodes: Vec<(Node, String)> = lost.iter().filter_map(named).collect();
        self.change(|state| state.without(lost, |node, why| Cause::NodeLost { node, why }));
        Some(Reason::Removes { nodes })
    }

    /// Refuses nodes whose rank a live node has. A holder without a recent heartbeat may be about to be removed.
    fn refuse(&mut self, me: NodeId, peers: &Peers) {
        let is_alive = |holder: &Node, node: &Node| holder.id == me || peers.is_alive(holder.id, node.id);
        let taken = self.state.contests().filter(|(node, holder)| is_alive(holder, node));
        let taken: Vec<(NodeId, Node)> = taken.map(|(node, holder)| (node.id, holder.clone())).collect();
        for (id, holder) in taken {
            self.change(|state| state.refusing(id, holder));
        }
    }

    /// Completes the round if it is time. Returns when to check again, and why not now.
    fn gather(&mut self, now: Duration, options: &Options) -> (Option<Duration>, Reason) {
        let state = &self.state;
        let (came, min, max) = (state.arrived(), state.job.min_nodes, state.job.max_nodes);
        if state.phase != RoundPhase::Gathering {
            return (None, Reason::Steady { round: state.round, done: state.done().len(), of: state.members.len() });
        }
        if came < state.members.len() || came < min {
            self.enough = None;
            let expected = state.members.len() - came;
            let reason = if expected > 0 {
                Reason::Expecting { nodes: state.expected().cloned().collect(), came, more: 0 }
            } else {
                Reason::TooFew { came, min }
            };
            return (None, reason);
        }
        let since = self.enough.filter(|(round, _)| *round == state.round).map_or(now, |(_, since)| since);
        let until = since + options.last_call_timeout;
        if came == max || state.round > 0 || now >= until {
            self.change(State::complete);
            return (None, Reason::Complete { came, max });
        }
        self.enough = Some((state.round, since));
        (Some(until), Reason::LastCall { came, min, max, left: until - now })
    }

    /// Two drafts with the same hash lead to the same decisions; ages beyond `cap` count as equal.
    #[cfg(test)]
    pub(super) fn digest(&self, now: Duration, cap: Duration, hasher: &mut impl std::hash::Hasher) {
        use std::hash::Hash;
        let age = |at: Duration| now.saturating_sub(at).min(cap);
        let due = (self.added > 0).then(|| age(self.written_at));
        (self.added, self.pressing(), due, self.enough.map(|(round, since)| (round, age(since)))).hash(hasher);
    }
}

fn mark(state: &State) -> Mark {
    let phase = match &state.phase {
        RoundPhase::Gathering => 0,
        RoundPhase::Running { .. } => 1,
        RoundPhase::Finished => 2,
        RoundPhase::Closed(_) => 3,
    };
    let lost = state.lost.last().map(|lost| (lost.node.id, state.lost.len()));
    let refused = state.refused.last().map(|refused| (refused.id, state.refused.len()));
    (state.round, phase, state.leader.as_ref().map(|leader| leader.id), lost, refused)
}

#[cfg(test)]
mod tests {
    use super::super::node::tests::{job, node};
    use super::super::request::Want;
    use super::*;

    fn draft(max: usize) -> Draft {
        let mut state = State::empty(job(1, max));
        state.leader = Some(node(1, "h"));
        Draft::new(state, Duration::ZERO)
    }

    fn join(draft: &mut Draft, id: NodeId) {
        let commands = draft.state.job.commands.clone();
        draft.grant(Request {
            from: id,
            want: Want::Join { node: Box::new(node(id, "h")), commands, given: None, round: 0 },
        });
    }

    fn lead(draft: &mut Draft, now: Duration) -> LeaderAction {
        let lead = draft.decide(now, 1, &Peers::new(now), &Options::default()).0;
        if matches!(lead, LeaderAction::Write { .. }) {
            draft.wrote(now);
        }
        lead
    }

    #[test]
    fn writes_whenever_the_number_of_nodes_doubles_and_once_when_all_have_come() {
        let mut draft = draft(1000);
        let mut written = Vec::new();
        for id in 1..=1000 {
            join(&mut draft, id);
            if let LeaderAction::Write { .. } = lead(&mut draft, Duration::ZERO) {
                written.push(id);
            }
        }
        assert_eq!(written, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000]);
        assert_eq!(lead(&mut draft, Duration::ZERO), LeaderAction::Wait { until: None });
    }

    #[test]
    fn writes_accumulated_changes_after_a_poll_interval() {
        let mut draft = draft(1000);
        (1..=9).for_each(|id| join(&mut draft, id));
        assert_eq!(lead(&mut draft, Duration::ZERO), LeaderAction::Write { news: true });
        join(&mut draft, 10);
        let poll = Options::default().poll();
        assert_eq!(lead(&mut draft, Duration::ZERO), LeaderAction::Wait { until: Some(poll) });
        assert_eq!(lead(&mut draft, poll), LeaderAction::Write { news: true });
        assert_eq!(lead(&mut draft, poll), LeaderAction::Wait { until: Some(Options::default().last_call_timeout) });
    }

    #[test]
    fn writes_immediately_that_the_leader_resigns_and_then_stops_leading() {
        let mut draft = draft(2);
        join(&mut draft, 1);
        join(&mut draft, 2);
        assert_eq!(lead(&mut draft, Duration::ZERO), LeaderAction::Write { news: true });
        draft.grant(Request { from: 1, want: Want::Leave { why: String::new() } });
        assert_eq!(lead(&mut draft, Duration::ZERO), LeaderAction::Write { news: true });
        assert_eq!(lead(&mut draft, Duration::ZERO), LeaderAction::End);
    }
}
