//! What the agents share, and the few steps that lead from one state to the next.
//!
//! Only the leader holds the whole of it. How it lies in the store, and what the others read of it, is in
//! [`header`](super::header). The steps are pure and keep the invariants that [`State::check`] names: no node twice, never
//! more members than the maximum, nobody waits while a place is free.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use super::node::{Job, Me, Node, NodeId};

/// The version of the format.
pub const SCHEMA: u32 = 3;

/// How many lost nodes are remembered for messages.
const MAX_LOST: usize = 16;
/// How many characters of a reason are kept.
const MAX_REASON: usize = 2000;

/// All that agents share.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// Counts the writes.
    pub version: u64,
    /// Counts the writes that everybody is to hear of at once.
    pub news: u64,
    /// Counts the leaders.
    pub term: u64,
    /// The node that alone changes the state in this term; `None` once it has resigned.
    pub leader: Option<Node>,
    /// The job that this rendezvous is for.
    pub job: Job,
    /// The round that gathers or runs, from 0.
    pub round: u64,
    /// Where that round stands.
    pub phase: Phase,
    /// Why the round is formed.
    pub cause: Cause,
    /// Who takes part; in the order of group ranks once it runs.
    pub members: Vec<Member>,
    /// Who waits for a place to become free, in the order of arrival.
    pub waiting: Vec<Node>,
    /// Who was struck out lately.
    pub lost: Vec<Lost>,
    /// Who was not let in lately.
    pub refused: Vec<Refused>,
}

/// Where a round stands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Members come.
    Gathering,
    /// Members are fixed, and their workers run.
    Running {
        /// Members whose workers have all succeeded.
        done: Vec<NodeId>,
    },
    /// The workers of all members have succeeded. Final.
    Finished,
    /// Some node has ended the job. Final.
    Closed(Closing),
}

/// A node that takes part.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    /// Who.
    pub node: Node,
    /// While the round gathers: whether it has come. Members of the round before are expected, and wait for their workers.
    pub arrived: bool,
    /// Its group rank in the latest round in which it took part.
    pub rank: Option<usize>,
}

/// Why a round is formed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // the fields are their names
pub enum Cause {
    /// It is the first.
    Start,
    /// A node gave no sign of life.
    NodeLost { node: Node, why: String },
    /// A node went of its own accord.
    NodeLeft { node: Node, why: String },
    /// A node asked in.
    Newcomer { node: Node },
    /// Workers of a node failed, and it starts them again.
    Restart { node: Node, reason: String },
}

/// Who ended the job, and why.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Closing {
    /// The node that did.
    pub by: Node,
    /// Its reason.
    pub reason: String,
    /// The worker at fault, where one is.
    pub root_cause: Option<RootCause>,
}

/// The worker that failed first.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs)] // the fields are their names
pub struct RootCause {
    pub rank: usize,
    pub local_rank: usize,
    pub host: String,
    pub pid: u32,
    /// Its exit code, or minus the signal's number.
    pub exit_code: i32,
    /// What it said in its error file or last lines; may be empty.
    pub message: String,
}

/// A node that was struck out.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Lost {
    /// Who.
    pub node: Node,
    /// Why.
    pub why: String,
    /// The round that gathered or ran then.
    pub round: u64,
}

/// A node that asked in and was not let in: a live node holds the rank that it insists on.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Refused {
    /// Who.
    pub id: NodeId,
    /// Who has its rank.
    pub holder: Node,
}

/// Checking.
impl State {
    /// What holds of every state that agents write; the text says what does not.
    pub fn check(&self) -> Result<(), String> {
        let mut ids: Vec<NodeId> = self.everyone().map(|node| node.id).collect();
        ids.sort_unstable();
        if ids.windows(2).any(|two| two[0] == two[1]) {
            return Err("a node is in it twice".to_owned());
        }
        let workers = self.members.iter().try_fold(0usize, |sum, m| sum.checked_add(m.node.local_world_size));
        if workers.is_none_or(|sum| sum > u32::MAX as usize) {
            return Err("its members have more workers than there can be".to_owned());
        }
        if self.members.len() > self.job.max_nodes {
            return Err(format!("{} members, but at most {} may be", self.members.len(), self.job.max_nodes));
        }
        if self.version == u64::MAX || self.round == u64::MAX {
            return Err("a count is at its end".to_owned());
        }
        Ok(())
    }
}

/// Asking.
impl State {
    /// The entry of node `id` among the members.
    #[must_use]
    pub fn member(&self, id: NodeId) -> Option<&Member> {
        self.members.iter().find(|member| member.node.id == id)
    }

    /// Whether node `id` waits for a place.
    #[must_use]
    pub fn waits(&self, id: NodeId) -> bool {
        self.waiting.iter().any(|node| node.id == id)
    }

    /// Members, then those who wait.
    pub fn everyone(&self) -> impl Iterator<Item = &Node> {
        self.members.iter().map(|member| &member.node).chain(&self.waiting)
    }

    /// Node `id`, member or waiting.
    #[must_use]
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.everyone().find(|node| node.id == id)
    }

    /// The node in which the store lives, where that is known.
    #[must_use]
    pub fn host(&self) -> Option<&Node> {
        self.everyone().find(|node| node.hosts_store)
    }

    /// Members that have come.
    #[must_use]
    pub fn arrived(&self) -> usize {
        self.members.iter().filter(|member| member.arrived).count()
    }

    /// Members that are expected and have not come.
    pub fn expected(&self) -> impl Iterator<Item = &Node> {
        self.members.iter().filter(|member| !member.arrived).map(|member| &member.node)
    }

    /// The node, member or waiting for longer than `me`, that holds the node rank that `me` insists on.
    #[must_use]
    pub fn rank_holder(&self, me: &Node) -> Option<&Node> {
        let rank = me.node_rank?;
        let before = self.everyone().take_while(|node| node.id != me.id);
        before.into_iter().find(|node| node.node_rank == Some(rank))
    }

    /// Those who wait for a rank that another node holds, with that node.
    pub fn contests(&self) -> impl Iterator<Item = (&Node, &Node)> {
        self.waiting.iter().filter_map(|node| Some((node, self.rank_holder(node)?)))
    }

    /// Members whose workers have all succeeded.
    #[must_use]
    pub fn done(&self) -> &[NodeId] {
        match &self.phase {
            Phase::Running { done } => done,
            _ => &[],
        }
    }

    /// Whether nothing will ever change again.
    #[must_use]
    pub fn is_final(&self) -> bool {
        matches!(self.phase, Phase::Finished | Phase::Closed(_))
    }
}

/// Steps. Each returns the state after it.
impl State {
    /// A rendezvous that nobody has come to yet.
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

    /// With `me` come, as a member or, where it is full, waiting. A running round must be re-formed first.
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

    /// Turned from running to the gathering of the next round, in which all its members are expected. Where some have
    /// succeeded already there is no next round for the others: it is closed.
    pub(super) fn reformed(mut self, cause: Cause) -> State {
        if let Some(done) = self.done().first().and_then(|id| self.node(*id)).cloned() {
            return self.closed_after(&done, cause);
        }
        self.members.iter_mut().for_each(|member| member.arrived = false);
        self.round += 1;
        (self.phase, self.cause) = (Phase::Gathering, cause);
        self.fill()
    }

    /// Without these nodes, each with the reason. Members that have succeeded stay: their part is done.
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
                // The members of the round stay as they were: the closing names who failed them.
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

    /// Whether losing member `id` ends the job, because others have succeeded already.
    fn ends_with(&self, id: NodeId) -> bool {
        !self.done().is_empty() && self.member(id).is_some()
    }

    /// The gathering, complete: members in the order of their group ranks.
    pub(super) fn complete(mut self) -> State {
        self.members.sort_by(|a, b| place(a).cmp(&place(b)).then_with(|| by_name(&a.node, &b.node)));
        self.members.iter_mut().enumerate().for_each(|(at, member)| member.rank = Some(at));
        self.phase = Phase::Running { done: Vec::new() };
        self
    }

    /// With member `id` done; finished when it was the last.
    pub(super) fn succeeded(mut self, id: NodeId) -> State {
        if let Phase::Running { done } = &mut self.phase {
            done.push(id);
            if done.len() == self.members.len() {
                self.phase = Phase::Finished;
            }
        }
        self
    }

    /// Ended by `closing`.
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
            "{}, after the workers of {done} had already finished: those cannot be started again with the others",
            cause.text()
        );
        let by = cause.node().unwrap_or(done).clone();
        self.closed(Closing { by, reason, root_cause: None })
    }

    /// Gives free places to those who wait, first come, first served.
    fn fill(mut self) -> State {
        while self.phase == Phase::Gathering && self.members.len() < self.job.max_nodes {
            let Some(at) = self.waiting.iter().position(|node| self.rank_holder(node).is_none()) else { break };
            let node = self.waiting.remove(at);
            self.members.push(Member { node, arrived: true, rank: None });
        }
        self
    }

    /// Without the waiting node `id`, whose rank `holder` has.
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

    /// In words.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Cause::Start => "the job starts".to_owned(),
            Cause::NodeLost { node, why } => format!("{node} was lost: {why}"),
            Cause::NodeLeft { node, why } => format!("{node} left: {why}"),
            Cause::Newcomer { node } => format!("{node} came to take part"),
            Cause::Restart { node, reason } => format!("{node} starts its workers again: {reason}"),
        }
    }
}

/// The host of the store comes first, since the workers' store is best served where the address is known; then whoever
/// insists on a rank; then members of the round before, in their order; then newcomers.
fn place(member: &Member) -> (usize, bool, usize) {
    let insists = member.node.node_rank.unwrap_or(usize::MAX);
    (insists, !member.node.hosts_store, member.rank.unwrap_or(usize::MAX))
}

/// By host as people count, `gpu2` before `gpu10`, so that neighbours have neighbouring ranks.
fn by_name(a: &Node, b: &Node) -> Ordering {
    chunks(&a.host).cmp(&chunks(&b.host)).then(a.id.cmp(&b.id))
}

/// A name as (text, number) pairs; numbers are compared by length first, so that they need not fit an integer.
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
    fn ranks_newcomers_by_host_as_people_count() {
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
    fn gives_insisted_ranks() {
        let mut state = gathered(&["a", "b"]);
        (state.members[0].node.node_rank, state.members[1].node.node_rank) = (Some(1), Some(0));
        assert_eq!(ids(&state.complete()), [2, 1]);
    }

    #[test]
    fn lets_the_fourth_of_three_wait_until_a_place_is_free() {
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
             finished: those cannot be started again with the others"
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
