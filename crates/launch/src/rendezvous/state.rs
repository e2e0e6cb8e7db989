//! The state that agents share, and the transitions between states.
//!
//! Only the leader holds the whole state. [`header`](super::header) describes how it is stored and what the other
//! agents read. The transitions are pure and keep the invariants of [`State::check`]: no node occurs twice, there are
//! never more members than the maximum, and no node waits while a place is free.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use super::node::{Job, Me, Node, NodeId};

/// The version of the format.
pub const SCHEMA: u32 = 4;

/// How many lost nodes are kept for messages.
const MAX_LOST: usize = 16;
/// How many characters of a reason are kept.
const MAX_REASON: usize = 2000;

/// The whole shared state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The number of writes.
    pub version: u64,
    /// The number of writes that were announced to all nodes.
    pub news: u64,
    /// The number of leaders.
    pub term: u64,
    /// The node that may change the state in this term; `None` after it has resigned.
    pub leader: Option<Node>,
    /// The job that this rendezvous is for.
    pub job: Job,
    /// The current round, from 0.
    pub round: u64,
    /// The phase of that round.
    pub phase: Phase,
    /// Why the round is formed.
    pub cause: Cause,
    /// The members; in the order of group ranks once the round runs.
    pub members: Vec<Member>,
    /// The nodes that wait for a free place, in the order of arrival.
    pub waiting: Vec<Node>,
    /// The nodes that were removed most recently.
    pub lost: Vec<Lost>,
    /// The nodes that were refused most recently.
    pub refused: Vec<Refused>,
}

/// The phase of a round.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Members arrive.
    Gathering,
    /// Members are fixed, and their workers run.
    Running {
        /// Members whose workers have all succeeded.
        done: Vec<NodeId>,
    },
    /// The workers of all members have succeeded. Final.
    Finished,
    /// A node has ended the job. Final.
    Closed(Closing),
}

/// A node that takes part in a round.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    /// The node.
    pub node: Node,
    /// While the round gathers: whether it has arrived. Members of the previous round are expected until their workers
    /// have ended.
    pub arrived: bool,
    /// Its group rank in the latest round that it took part in.
    pub rank: Option<usize>,
}

/// Why a round is formed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // the names of the fields explain them
pub enum Cause {
    /// It is the first round.
    Start,
    /// A node's heartbeat stopped, or it disconnected.
    NodeLost { node: Node, why: String },
    /// A node left voluntarily.
    NodeLeft { node: Node, why: String },
    /// A new node asked to join.
    Newcomer { node: Node },
    /// Workers of a node failed, and it restarts them.
    Restart { node: Node, reason: String },
}

/// Which node ended the job, and why.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Closing {
    /// The node that ended it.
    pub by: Node,
    /// Its reason.
    pub reason: String,
    /// The worker at fault, if there is one.
    pub root_cause: Option<RootCause>,
}

/// The worker that failed first.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs)] // the names of the fields explain them
pub struct RootCause {
    pub rank: usize,
    pub local_rank: usize,
    pub host: String,
    pub pid: u32,
    /// Its exit code, or minus the signal's number.
    pub exit_code: i32,
    /// The message in its error file or its last lines; may be empty.
    pub message: String,
}

/// A node that was removed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Lost {
    /// The node.
    pub node: Node,
    /// The reason.
    pub why: String,
    /// The round at that time.
    pub round: u64,
}

/// A node that asked to join and was refused: a live node has the rank that it requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Refused {
    /// Its id.
    pub id: NodeId,
    /// The node that has its rank.
    pub holder: Node,
}

/// Validation.
impl State {
    /// Checks the invariants of every state that agents write; the error names the one that is broken.
    pub fn check(&self) -> Result<(), String> {
        let mut ids: Vec<NodeId> = self.everyone().map(|node| node.id).collect();
        ids.sort_unstable();
        if ids.windows(2).any(|two| two[0] == two[1]) {
            return Err("a node is in it twice".to_owned());
        }
        let workers = self.members.iter().try_fold(0usize, |sum, m| sum.checked_add(m.node.local_world_size));
        if workers.is_none_or(|sum| sum > u32::MAX as usize) {
            return Err("its members have more workers than is possible".to_owned());
        }
        if self.members.len() > self.job.max_nodes {
            return Err(format!("{} members, but at most {} may be", self.members.len(), self.job.max_nodes));
        }
        if self.version == u64::MAX || self.round == u64::MAX {
            return Err("a counter has overflowed".to_owned());
        }
        Ok(())
    }
}

/// Queries.
impl State {
    /// The entry of node `id` among the members.
    #[must_use]
    pub fn member(&self, id: NodeId) -> Option<&Member> {
        self.members.iter().find(|member| member.node.id == id)
    }

    /// Returns true if node `id` waits for a place.
    #[must_use]
    pub fn waits(&self, id: NodeId) -> bool {
        self.waiting.iter().any(|node| node.id == id)
    }

    /// All members, then all waiting nodes.
    pub fn everyone(&self) -> impl Iterator<Item = &Node> {
        self.members.iter().map(|member| &member.node).chain(&self.waiting)
    }

    /// Node `id`, whether member or waiting.
    #[must_use]
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.everyone().find(|node| node.id == id)
    }

    /// The node that hosts the store, if known.
    #[must_use]
    pub fn host(&self) -> Option<&Node> {
        self.everyone().find(|node| node.hosts_store)
    }

    /// The number of members that have arrived.
    #[must_use]
    pub fn arrived(&self) -> usize {
        self.members.iter().filter(|member| member.arrived).count()
    }

    /// The members that are expected and have not arrived.
    pub fn expected(&self) -> impl Iterator<Item = &Node> {
        self.members.iter().filter(|member| !member.arrived).map(|member| &member.node)
    }

    /// The node, a member or one that has waited longer than `me`, that has the node rank that `me` requests.
    #[must_use]
    pub fn rank_holder(&self, me: &Node) -> Option<&Node> {
        let rank = me.node_rank?;
        let before = self.everyone().take_while(|node| node.id != me.id);
        before.into_iter().find(|node| node.node_rank == Some(rank))
    }

    /// The nodes that wait for a rank, each with the node that has it.
    pub fn contests(&self) -> impl Iterator<Item = (&Node, &Node)> {
        self.waiting.iter().filter_map(|node| Some((node, self.rank_holder(node)?)))
    }

    /// The members whose workers have all succeeded.
    #[must_use]
    pub fn done(&self) -> &[NodeId] {
        match &self.phase {
            Phase::Running { done } => done,
            _ => &[],
        }
    }

    /// Returns true if the state can no longer change.
    #[must_use]
    pub fn is_final(&self) -> bool {
        matches!(self.phase, Phase::Finished | Phase::Closed(_))
    }
}

/// Transitions. Each returns the next state.
impl State {
    /// A rendezvous without nodes.
    pub(super) fn empty(job: Job) -> State {
        State {
            version: 0,
            news: 0,
            term: 0,
            leader: None,
            job,
            round: 0,
            phase: Phase::Gathering,
            cause: Cause::Start,
            members: Vec::new(),
            waiting: Vec::new(),
            lost: Vec::new(),
            refused: Vec::new(),
        }
    }

    /// Adds `me` as a member or, if all places are taken, as a waiting node. A running round must be re-formed first.
    pub(super) fn with(mut self, me: &Me) -> State {
        for (role, command) in &me.job.commands {
            self.job.commands.entry(role.clone()).or_insert_with(|| command.clone());
        }
        if let Some(member) = self.members.iter_mut().find(|member| member.node.id == me.node.id) {
            member.arrived = true;
        } else if !self.waits(me.node.id) {
            self.waiting.push(me.node.clone());
        }
        self.fill()
    }

    /// Turns a running round into the gathering of the next one, in which all of its members are expected. If some have
    /// already succeeded, the others cannot have a next round, and the job is closed.
    pub(super) fn reformed(mut self, cause: Cause) -> State {
        if let Some(done) = self.done().first().and_then(|id| self.node(*id)).cloned() {
            return self.closed_after(&done, cause);
        }
        self.members.iter_mut().for_each(|member| member.arrived = false);
        self.round += 1;
        (self.phase, self.cause) = (Phase::Gathering, cause);
        self.fill()
    }

    /// Removes these nodes, each with its reason. Members that have succeeded stay, because their part is complete.
    pub(super) fn without(mut self, gone: Vec<(NodeId, String)>, cause: fn(Node, String) -> Cause) -> State {
        let mut missed = None;
        for (id, why) in gone {
            if self.done().contains(&id) {
                continue;
            }
            let Some(node) = self.node(id).cloned() else { continue };
            let why = shorten(&why);
            if self.member(id).is_some() {
                missed.get_or_insert_with(|| cause(node.clone(), why.clone()));
            }
            let place = self.members.iter().position(|member| member.node.id == id);
            if self.ends_with(id) {
                // The members of the round stay unchanged: the closing names the lost one.
                continue;
            }
            place.map(|at| self.members.remove(at));
            self.waiting.retain(|node| node.id != id);
            self.lost.push(Lost { node, why, round: self.round });
        }
        let excess = self.lost.len().saturating_sub(MAX_LOST);
        self.lost.drain(..excess);
        match (missed, &self.phase) {
            (Some(cause), Phase::Running { .. }) => self.reformed(cause),
            _ => self.fill(),
        }
    }

    /// Returns true if losing member `id` ends the job, because others have already succeeded.
    fn ends_with(&self, id: NodeId) -> bool {
        !self.done().is_empty() && self.member(id).is_some()
    }

    /// Completes the gathering: puts members in the order of their group ranks.
    pub(super) fn complete(mut self) -> State {
        self.members.sort_by(|a, b| place(a).cmp(&place(b)).then_with(|| by_name(&a.node, &b.node)));
        self.members.iter_mut().enumerate().for_each(|(at, member)| member.rank = Some(at));
        self.phase = Phase::Running { done: Vec::new() };
        self
    }

    /// Marks member `id` as done; finishes the job if it was the last.
    pub(super) fn succeeded(mut self, id: NodeId) -> State {
        if let Phase::Running { done } = &mut self.phase {
            done.push(id);
            if done.len() == self.members.len() {
                self.phase = Phase::Finished;
            }
        }
        self
    }

    /// Closes the job.
    pub(super) fn closed(mut self, mut closing: Closing) -> State {
        closing.reason = shorten(&closing.reason);
        if let Some(root) = &mut closing.root_cause {
            root.message = shorten(&root.message);
        }
        self.phase = Phase::Closed(closing);
        self
    }

    fn closed_after(self, done: &Node, cause: Cause) -> State {
        let reason = format!(
            "{}, after the workers of {done} had already finished: they cannot be restarted together with the others",
            cause.text()
        );
        let by = cause.node().unwrap_or(done).clone();
        self.closed(Closing { by, reason, root_cause: None })
    }

    /// Gives free places to waiting nodes, first come, first served.
    fn fill(mut self) -> State {
        while self.phase == Phase::Gathering && self.members.len() < self.job.max_nodes {
            let Some(at) = self.waiting.iter().position(|node| self.rank_holder(node).is_none()) else { break };
            let node = self.waiting.remove(at);
            self.members.push(Member { node, arrived: true, rank: None });
        }
        self
    }

    /// Removes the waiting node `id`, whose rank `holder` has.
    pub(super) fn refusing(mut self, id: NodeId, holder: Node) -> State {
        self.waiting.retain(|node| node.id != id);
        self.refused.push(Refused { id, holder });
        let excess = self.refused.len().saturating_sub(MAX_LOST);
        self.refused.drain(..excess);
        self
    }
}

impl Cause {
    /// The node that caused it.
    #[must_use]
    pub fn node(&self) -> Option<&Node> {
        match self {
            Cause::Start => None,
            Cause::NodeLost { node, .. }
            | Cause::NodeLeft { node, .. }
            | Cause::Newcomer { node }
            | Cause::Restart { node, .. } => Some(node),
        }
    }

    /// A text for messages.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Cause::Start => "the job starts".to_owned(),
            Cause::NodeLost { node, why } => format!("{node} was lost: {why}"),
            Cause::NodeLeft { node, why } => format!("{node} left: {why}"),
            Cause::Newcomer { node } => format!("{node} joined"),
            Cause::Restart { node, reason } => format!("{node} starts its workers again: {reason}"),
        }
    }
}

/// The order of members: the host of the store, because the workers' store is best hosted where the address is known;
/// then nodes that request a rank; then members of the previous round, in their order; then new nodes.
fn place(member: &Member) -> (usize, bool, usize) {
    let insists = member.node.node_rank.unwrap_or(usize::MAX);
    (insists, !member.node.hosts_store, member.rank.unwrap_or(usize::MAX))
}

/// Natural order of host names, `gpu2` before `gpu10`, so that neighbours get neighbouring ranks.
fn by_name(a: &Node, b: &Node) -> Ordering {
    chunks(&a.host).cmp(&chunks(&b.host)).then(a.id.cmp(&b.id))
}

/// Splits a name into (text, number) pairs; numbers are compared by length first, so they need not fit in an integer.
fn chunks(name: &str) -> Vec<(&str, usize, &str)> {
    let mut rest = name;
    let mut found = Vec::new();
    while !rest.is_empty() {
        let digits = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let (text, tail) = rest.split_at(digits);
        let end = tail.find(|c: char| !c.is_ascii_digit()).unwrap_or(tail.len());
        let number = tail[..end].trim_start_matches('0');
        found.push((text, number.len(), number));
        rest = &tail[end..];
    }
    found
}

fn shorten(text: &str) -> String {
    match text.char_indices().nth(MAX_REASON) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::node::tests::{job, node};
    use super::*;

    fn me(id: NodeId, host: &str) -> Me {
        Me { node: node(id, host), job: job(1, 3) }
    }

    fn gathered(hosts: &[&str]) -> State {
        let join = |state: State, (at, host): (usize, &&str)| state.with(&me(at as NodeId + 1, host));
        hosts.iter().enumerate().fold(State::empty(job(1, 3)), join)
    }

    fn ids(state: &State) -> Vec<NodeId> {
        state.members.iter().map(|member| member.node.id).collect()
    }

    #[test]
    fn ranks_new_nodes_in_the_natural_order_of_host_names() {
        assert_eq!(ids(&gathered(&["gpu10", "gpu9", "gpu010"]).complete()), [2, 1, 3]);
        assert_eq!(ids(&gathered(&["b", "a1x", "a01w"]).complete()), [3, 2, 1]);
    }

    #[test]
    fn gives_rank_0_to_the_host_of_the_store_and_keeps_the_order_of_survivors() {
        let mut state = gathered(&["c", "b", "a"]);
        state.members[0].node.hosts_store = true;
        let state = state.complete();
        assert_eq!(ids(&state), [1, 3, 2]);
        let state = state.without(vec![(3, "gone".into())], |node, why| Cause::NodeLost { node, why });
        let state = state.with(&me(9, "a")).with(&me(2, "b")).with(&me(1, "c"));
        assert_eq!((state.round, ids(&state.complete())), (1, vec![1, 2, 9]));
    }

    #[test]
    fn gives_requested_ranks() {
        let mut state = gathered(&["a", "b"]);
        (state.members[0].node.node_rank, state.members[1].node.node_rank) = (Some(1), Some(0));
        assert_eq!(ids(&state.complete()), [2, 1]);
    }

    #[test]
    fn makes_the_fourth_of_three_nodes_wait_until_a_place_is_free() {
        let state = gathered(&["a", "b", "c", "d", "e"]);
        assert_eq!((ids(&state), state.waiting.len()), (vec![1, 2, 3], 2));
        let state = state.complete().without(vec![(2, "gone".into())], |node, why| Cause::NodeLost { node, why });
        assert_eq!((ids(&state), state.waiting.len(), state.arrived()), (vec![1, 3, 4], 1, 1));
        assert_eq!(state.lost[0].why, "gone");
    }

    #[test]
    fn closes_when_a_member_is_lost_after_another_has_finished() {
        let state = gathered(&["a", "b"]).complete().succeeded(1);
        let lost = state.clone().without(vec![(2, "no heartbeat".into())], |node, why| Cause::NodeLost { node, why });
        let Phase::Closed(closing) = &lost.phase else { panic!("{lost:?}") };
        assert_eq!(
            closing.reason,
            "node 2 (b, pid 100) was lost: no heartbeat, after the workers of node 1 (a, pid 100) had already \
             finished: they cannot be restarted together with the others"
        );
        let kept = state.clone().without(vec![(1, "no heartbeat".into())], |node, why| Cause::NodeLost { node, why });
        assert_eq!(kept.done(), [1]);
        assert_eq!(state.succeeded(2).phase, Phase::Finished);
    }

    #[test]
    fn shortens_reasons_at_a_character() {
        let long = "é".repeat(MAX_REASON + 1);
        assert_eq!(shorten(&long).chars().count(), MAX_REASON + 1);
        assert_eq!(shorten("short"), "short");
    }
}
