//! What the authority knows of a job: its members, round by round, and the changes that events make.
//!
//! Pure, without time and connections. No node occurs twice, there are never more members than the maximum, and no node waits while
//! a place is free.
//! [`Node`] and [`JobIdentity`] are the identities of an agent and of its job; [`Cause`], [`Closing`] and [`Lost`] what happened to it.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use lockstep_contract::foreign::one_line;
use serde::{Deserialize, Serialize};

/// How many lost nodes are kept for messages.
const MAX_LOST: usize = 16;

/// The state of a job.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The job that this rendezvous is for.
    pub job: JobIdentity,
    /// The current round, from 0.
    pub round: u64,
    /// The phase of that round.
    pub phase: RoundPhase,
    /// Why the round is formed.
    pub cause: Cause,
    /// The members; in the order of group ranks once the round runs.
    pub members: Vec<Member>,
    /// The ranks of the running round, by group rank.
    pub ranks: Vec<RankAssignment>,
    /// The address of the workers' store of the running round, once group rank 0 has named it.
    pub master: Option<String>,
    /// The nodes that wait for a free place, in the order of arrival.
    pub waiting: Vec<Node>,
    /// The nodes that were removed most recently.
    pub lost: Vec<Lost>,
}

/// The phase of a round.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RoundPhase {
    /// Members arrive.
    Gathering,
    /// Members are fixed, and their workers run; all workers of the members in `done` have succeeded.
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

/// The ranks that a round assigns to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RankAssignment {
    /// GROUP_RANK.
    pub group_rank: usize,
    /// The rank of its first worker.
    pub first_rank: usize,
    /// The role rank of its first worker.
    pub first_role_rank: usize,
    /// The number of workers of all nodes with its role.
    pub role_world_size: usize,
}

impl State {
    /// A job without nodes.
    #[must_use]
    pub fn new(job: JobIdentity) -> State {
        State {
            job,
            round: 0,
            phase: RoundPhase::Gathering,
            cause: Cause::Start,
            members: Vec::new(),
            ranks: Vec::new(),
            master: None,
            waiting: Vec::new(),
            lost: Vec::new(),
        }
    }

    /// The entry of node `id` among the members.
    #[must_use]
    pub fn member(&self, id: NodeId) -> Option<&Member> {
        self.members.iter().find(|member| member.node.id == id)
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
        self.everyone().take_while(|node| node.id != me.id).find(|node| node.node_rank == Some(rank))
    }

    /// The members whose workers have all succeeded.
    #[must_use]
    pub fn done(&self) -> &[NodeId] {
        match &self.phase {
            RoundPhase::Running { done } => done,
            _ => &[],
        }
    }

    /// Returns true while a round runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        matches!(self.phase, RoundPhase::Running { .. })
    }

    /// Returns true if the state can no longer change.
    #[must_use]
    pub fn is_final(&self) -> bool {
        matches!(self.phase, RoundPhase::Finished | RoundPhase::Closed(_))
    }

    /// Returns true if node `id` is a member of the running `round` and has not succeeded yet.
    #[must_use]
    pub fn runs(&self, id: NodeId, round: u64) -> bool {
        self.is_running() && self.round == round && self.member(id).is_some() && !self.done().contains(&id)
    }
}

/// Changes.
impl State {
    /// A node asks to take part; the state may know it already. `given` is the last round that it took part in. The node belongs to
    /// the same job, and its workers have ended.
    pub(super) fn join(&mut self, node: Node, given: Option<u64>) {
        let (id, known) = (node.id, self.node(node.id).is_some());
        match &self.phase {
            RoundPhase::Gathering => self.add(node),
            RoundPhase::Running { done } if known && given == Some(self.round) && !done.contains(&id) => {
                self.reform(Cause::Restart { node: node.clone(), reason: "it joins again".to_owned() });
                if self.phase == RoundPhase::Gathering {
                    self.add(node);
                }
            }
            // It already is a member, or the job is ending and no node can join.
            RoundPhase::Running { done } if known || !done.is_empty() => {}
            RoundPhase::Running { .. } => {
                let contested = node.node_rank.is_some() && self.everyone().any(|one| one.node_rank == node.node_rank);
                if !contested && self.members.len() < self.job.max_nodes {
                    self.reform(Cause::Newcomer { node: node.clone() });
                }
                self.add(node);
            }
            RoundPhase::Finished | RoundPhase::Closed(_) => {}
        }
    }

    /// Adds the node as a member or, if all places are taken, as a waiting node.
    fn add(&mut self, node: Node) {
        if let Some(member) = self.members.iter_mut().find(|member| member.node.id == node.id) {
            member.arrived = true;
        } else if !self.waiting.iter().any(|waiting| waiting.id == node.id) {
            self.waiting.push(node);
        }
        self.fill();
    }

    /// Turns a running round into the gathering of the next one, in which all of its members are expected. If some have
    /// already succeeded, the others cannot have a next round, and the job is closed.
    pub(super) fn reform(&mut self, cause: Cause) {
        if let Some(done) = self.done().first().and_then(|id| self.node(*id)) {
            let reason = format!(
                "{}, after the workers of {done} had already finished: they cannot be restarted together with the others",
                cause.text()
            );
            let by = cause.node().unwrap_or(done).clone();
            return self.close(Closing { by, reason, root_cause: None });
        }
        self.members.iter_mut().for_each(|member| member.arrived = false);
        self.round += 1;
        (self.phase, self.cause, self.master) = (RoundPhase::Gathering, cause, None);
        self.ranks.clear();
        self.fill();
    }

    /// Removes these nodes, each with its reason. Members that have succeeded stay, because their part is complete.
    pub(super) fn remove(&mut self, gone: Vec<(NodeId, String)>, cause: fn(Node, String) -> Cause) {
        let mut missed = None;
        for (id, why) in gone.into_iter().filter(|(id, _)| !self.done().contains(id)).collect::<Vec<_>>() {
            let Some(node) = self.node(id).cloned() else { continue };
            let (why, is_member) = (one_line(&why), self.member(id).is_some());
            if is_member {
                missed.get_or_insert_with(|| cause(node.clone(), why.clone()));
            }
            if is_member && !self.done().is_empty() {
                continue; // the members of the round stay unchanged: the closing names the lost one
            }
            self.members.retain(|member| member.node.id != id);
            self.waiting.retain(|node| node.id != id);
            self.lost.push(Lost { node, why, round: self.round });
        }
        let excess = self.lost.len().saturating_sub(MAX_LOST);
        self.lost.drain(..excess);
        match missed {
            Some(cause) if self.is_running() => self.reform(cause),
            _ => self.fill(),
        }
    }

    /// Completes the gathering: puts members in the order of their group ranks.
    pub(super) fn complete(&mut self) {
        self.members.sort_by(|a, b| place(a).cmp(&place(b)).then_with(|| by_name(&a.node, &b.node)));
        self.members.iter_mut().enumerate().for_each(|(at, member)| member.rank = Some(at));
        self.ranks = assign_ranks(self.members.iter().map(|member| &member.node));
        self.phase = RoundPhase::Running { done: Vec::new() };
    }

    /// Marks member `id` as done; finishes the job if it was the last.
    pub(super) fn succeed(&mut self, id: NodeId) {
        if let RoundPhase::Running { done } = &mut self.phase {
            done.push(id);
            if done.len() == self.members.len() {
                self.phase = RoundPhase::Finished;
            }
        }
    }

    /// Closes the job.
    pub(super) fn close(&mut self, mut closing: Closing) {
        closing.reason = one_line(&closing.reason);
        if let Some(root) = &mut closing.root_cause {
            root.message = one_line(&root.message);
        }
        self.phase = RoundPhase::Closed(closing);
    }

    /// Gives free places to waiting nodes, first come, first served.
    fn fill(&mut self) {
        while self.phase == RoundPhase::Gathering && self.members.len() < self.job.max_nodes {
            let Some(at) = self.waiting.iter().position(|node| self.rank_holder(node).is_none()) else { break };
            let node = self.waiting.remove(at);
            self.members.push(Member { node, arrived: true, rank: None });
        }
    }
}

/// The order of members: nodes that request a rank; then the authority's, because the workers' store is best hosted where the address
/// is known; then members of the previous round, in their order; then new nodes.
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

/// Assigns ranks to `nodes`, which are in the order of their group ranks. The ranks of a node are contiguous; role ranks count only
/// nodes of the same role, as in `_assign_worker_ranks` of torch/distributed/elastic/agent/server/api.py.
fn assign_ranks<'a>(nodes: impl Iterator<Item = &'a Node> + Clone) -> Vec<RankAssignment> {
    let mut sizes: BTreeMap<&str, usize> = BTreeMap::new();
    nodes.clone().for_each(|node| *sizes.entry(&node.role).or_default() += node.local_world_size);
    let mut placed: BTreeMap<&str, usize> = BTreeMap::new();
    let mut first_rank = 0;
    let assignment = |(group_rank, node): (usize, &'a Node)| {
        let before = placed.entry(&node.role).or_default();
        let role_world_size = sizes[node.role.as_str()]; // every role was counted above
        let assignment = RankAssignment { group_rank, first_rank, first_role_rank: *before, role_world_size };
        *before += node.local_world_size;
        first_rank += node.local_world_size;
        assignment
    };
    nodes.enumerate().map(assignment).collect()
}

/// A node's id, which the authority assigns when the node first joins. Ids are never reused. An agent that was restarted,
/// or that was removed and comes back, gets a new one.
pub type NodeId = u64;

/// What an agent publishes about itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Node {
    /// Its id; 0 until the authority has assigned one.
    pub id: NodeId,
    /// The host's name.
    pub host: String,
    /// The address at which other nodes reach it.
    pub addr: String,
    /// The process id of the agent.
    pub pid: u32,
    /// The number of its workers; at least 1.
    pub local_world_size: usize,
    /// torchrun's `--role`.
    pub role: String,
    /// True if this agent hosts the store. Such a node becomes group rank 0 if possible.
    #[serde(default)]
    pub hosts_store: bool,
    /// The group rank that it requests (`--node-rank` of a static rendezvous).
    #[serde(default)]
    pub node_rank: Option<usize>,
    /// The port at which it can take over from a lost authority, if it listens for that.
    #[serde(default)]
    pub port: Option<u16>,
}

/// The identity of a job. Agents of different jobs at the same endpoint refuse each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct JobIdentity {
    /// `--rdzv-id`.
    pub run_id: String,
    /// The lower bound of `--nnodes`.
    pub min_nodes: usize,
    /// The upper bound of `--nnodes`.
    pub max_nodes: usize,
    /// `static` or `c10d`.
    pub backend: String,
    /// The name of the user who started it.
    pub user: String,
    /// The batch system's id of the job, like `SLURM_JOB_ID=17`, if there is one.
    #[serde(default)]
    pub batch: Option<String>,
    /// The command line of the workers by role: different roles may run different programs.
    pub commands: BTreeMap<String, String>,
}

/// A difference between two jobs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Difference {
    /// The name of the property.
    pub what: String,
    /// The value of this agent.
    pub ours: String,
    /// The value in the rendezvous.
    pub theirs: String,
}

impl JobIdentity {
    /// The differences between `theirs` and this job; empty for the same job. If one side has no batch id, that is not
    /// a difference: agents may be started by hand inside a job.
    #[must_use]
    pub fn differences(&self, theirs: &JobIdentity) -> Vec<Difference> {
        let nodes = |job: &JobIdentity| format!("{}:{}", job.min_nodes, job.max_nodes);
        let mut pairs = vec![
            ("run id", self.run_id.clone(), theirs.run_id.clone()),
            ("nnodes", nodes(self), nodes(theirs)),
            ("rendezvous backend", self.backend.clone(), theirs.backend.clone()),
            ("user", self.user.clone(), theirs.user.clone()),
        ];
        if let (Some(ours), Some(theirs)) = (&self.batch, &theirs.batch) {
            pairs.push(("batch job", ours.clone(), theirs.clone()));
        }
        // Nodes of one job may have different arguments. Only without a run id do the arguments identify the job.
        let unnamed = self.backend == "c10d" && self.run_id == "none";
        for (role, ours) in self.commands.iter().filter(|_| unnamed) {
            if let Some(theirs) = theirs.commands.get(role) {
                pairs.push(("command", ours.clone(), theirs.clone()));
            }
        }
        let differ = pairs.into_iter().filter(|(_, ours, theirs)| ours != theirs);
        differ.map(|(what, ours, theirs)| Difference { what: what.to_owned(), ours, theirs }).collect()
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not its id: nodes are counted by --node-rank alone, from 0.
        write!(f, "node {} (", self.host)?;
        if self.addr != self.host {
            write!(f, "{}, ", self.addr)?;
        }
        if let Some(rank) = self.node_rank {
            write!(f, "--node-rank={rank}, ")?;
        }
        write!(f, "pid {})", self.pid)
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ours is `{}`, theirs is `{}`", self.what, self.ours, self.theirs)
    }
}

/// A node, and when the authority first saw it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SeenNode {
    /// The node.
    pub node: Node,
    /// How long ago, by the authority's clock.
    pub ago: Duration,
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn gathered(hosts: &[&str]) -> State {
        let mut state = State::new(job(1, 3));
        hosts.iter().enumerate().for_each(|(at, host)| state.join(node(at as NodeId + 1, host), None));
        state
    }

    fn running(hosts: &[&str]) -> State {
        let mut state = gathered(hosts);
        state.complete();
        state
    }

    fn lose(state: &mut State, id: NodeId) {
        state.remove(vec![(id, "gone".into())], |node, why| Cause::NodeLost { node, why });
    }

    fn ids(state: &State) -> Vec<NodeId> {
        state.members.iter().map(|member| member.node.id).collect()
    }

    #[test]
    fn ranks_new_nodes_in_the_natural_order_of_host_names() {
        assert_eq!(ids(&running(&["gpu10", "gpu9", "gpu010"])), [2, 1, 3]);
        assert_eq!(ids(&running(&["b", "a1x", "a01w"])), [3, 2, 1]);
    }

    #[test]
    fn gives_rank_0_to_the_authority_and_keeps_the_order_of_survivors() {
        let mut state = gathered(&["c", "b", "a"]);
        state.members[0].node.hosts_store = true;
        state.complete();
        assert_eq!(ids(&state), [1, 3, 2]);
        lose(&mut state, 3);
        for (id, host) in [(9, "a"), (2, "b"), (1, "c")] {
            state.join(node(id, host), Some(0));
        }
        state.complete();
        assert_eq!((state.round, ids(&state)), (1, vec![1, 2, 9]));
    }

    #[test]
    fn gives_requested_ranks() {
        let mut state = gathered(&["a", "b"]);
        (state.members[0].node.node_rank, state.members[1].node.node_rank) = (Some(1), Some(0));
        state.complete();
        assert_eq!(ids(&state), [2, 1]);
    }

    #[test]
    fn gives_contiguous_ranks_and_counts_role_ranks_among_nodes_of_the_same_role() {
        let mut state = gathered(&["a", "b", "c"]);
        for (member, (size, role)) in state.members.iter_mut().zip([(2, "trainer"), (1, "reader"), (3, "trainer")]) {
            (member.node.local_world_size, member.node.role) = (size, role.to_owned());
        }
        state.complete();
        // Checked against torch's `_assign_worker_ranks` with the same nodes.
        let ranks = |one: &RankAssignment| (one.group_rank, one.first_rank, one.first_role_rank, one.role_world_size);
        assert_eq!(state.ranks.iter().map(ranks).collect::<Vec<_>>(), [(0, 0, 0, 5), (1, 2, 0, 1), (2, 3, 2, 5)]);
    }

    #[test]
    fn makes_the_fourth_of_three_nodes_wait_until_a_place_is_free() {
        let mut state = gathered(&["a", "b", "c", "d", "e"]);
        assert_eq!((ids(&state), state.waiting.len()), (vec![1, 2, 3], 2));
        state.complete();
        lose(&mut state, 2);
        assert_eq!((ids(&state), state.waiting.len(), state.arrived()), (vec![1, 3, 4], 1, 1));
        assert_eq!(state.lost[0].why, "gone");
    }

    #[test]
    fn closes_when_a_member_is_lost_after_another_has_finished() {
        let mut state = running(&["a", "b"]);
        state.succeed(1);
        let mut lost = state.clone();
        lose(&mut lost, 2);
        let RoundPhase::Closed(closing) = &lost.phase else { panic!("{lost:?}") };
        assert_eq!(
            closing.reason,
            "node b (pid 100) was lost: gone, after the workers of node a (pid 100) had already finished: they \
             cannot be restarted together with the others"
        );
        let before = state.clone();
        lose(&mut state, 1);
        assert_eq!(state, before);
        state.succeed(2);
        assert_eq!(state.phase, RoundPhase::Finished);
    }

    #[test]
    fn a_newcomer_turns_a_running_round_into_the_gathering_of_the_next() {
        let mut state = running(&["a", "b"]);
        state.join(node(3, "c"), None);
        assert_eq!((state.round, state.arrived(), state.members.len()), (1, 1, 3));
        assert!(matches!(state.cause, Cause::Newcomer { node } if node.id == 3));
    }

    #[test]
    fn a_member_that_joins_again_restarts_the_round_and_has_come() {
        let mut state = running(&["a", "b"]);
        state.join(node(2, "b"), Some(0));
        assert_eq!((state.round, state.arrived()), (1, 1));
        assert_eq!(state.cause.text(), "node b (pid 100) starts its workers again: it joins again");
    }

    #[test]
    fn a_node_whose_rank_is_taken_waits_even_if_a_place_is_free() {
        let mut state = State::new(job(1, 3));
        let join = |state: &mut State, id| state.join(Node { node_rank: Some(0), ..node(id, "h") }, None);
        join(&mut state, 1);
        join(&mut state, 2);
        assert_eq!((state.members.len(), state.waiting.len()), (1, 1));
        state.complete();
        join(&mut state, 3);
        assert_eq!((state.round, state.waiting.len()), (0, 2));
        lose(&mut state, 1);
        assert_eq!((state.round, state.members[0].node.id, state.waiting.len()), (1, 2, 1));
    }

    pub(crate) fn job(min: usize, max: usize) -> JobIdentity {
        let commands = BTreeMap::from([("default".to_owned(), "train".to_owned())]);
        let (run_id, user) = ("none".to_owned(), "ada".to_owned());
        JobIdentity { run_id, min_nodes: min, max_nodes: max, backend: "c10d".into(), user, batch: None, commands }
    }

    pub(crate) fn node(id: NodeId, host: &str) -> Node {
        let (host, addr, role) = (host.to_owned(), host.to_owned(), "default".to_owned());
        Node { id, host, addr, pid: 100, local_world_size: 1, role, hosts_store: false, node_rank: None, port: None }
    }

    #[test]
    fn names_each_difference_with_both_sides() {
        let mut theirs = job(1, 2);
        assert_eq!(job(1, 2).differences(&theirs), []);
        theirs.user = "bob".into();
        theirs.commands.insert("default".into(), "other".into());
        let text: Vec<_> = job(1, 2).differences(&theirs).iter().map(ToString::to_string).collect();
        assert_eq!(text, ["user: ours is `ada`, theirs is `bob`", "command: ours is `train`, theirs is `other`"]);
    }

    #[test]
    fn lets_roles_run_different_programs_and_batch_ids_be_unknown() {
        let (mut ours, mut theirs) = (job(2, 2), job(2, 2));
        ours.commands = BTreeMap::from([("reader".into(), "read".into())]);
        ours.batch = Some("SLURM_JOB_ID=1".into());
        assert_eq!(ours.differences(&theirs), []);
        theirs.batch = Some("SLURM_JOB_ID=2".into());
        assert_eq!(ours.differences(&theirs).len(), 1);
    }

    #[test]
    fn describes_a_node_in_one_phrase() {
        let mut one = node(3, "gpu01");
        assert_eq!(one.to_string(), "node gpu01 (pid 100)");
        (one.addr, one.node_rank) = ("10.0.0.1".into(), Some(2));
        assert_eq!(one.to_string(), "node gpu01 (10.0.0.1, --node-rank=2, pid 100)");
    }
}
