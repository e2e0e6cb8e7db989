//! The state that agents share.
//!
//! Only the leader holds the whole state. [`header`](super::header) describes how it is stored and what the other
//! agents read.

use serde::{Deserialize, Serialize};

use super::node::{Job, Node, NodeId};

/// The version of the format.
pub const SCHEMA: u32 = 4;

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
    pub phase: RoundPhase,
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
pub enum RoundPhase {
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
            RoundPhase::Running { done } => done,
            _ => &[],
        }
    }

    /// Returns true if the state can no longer change.
    #[must_use]
    pub fn is_final(&self) -> bool {
        matches!(self.phase, RoundPhase::Finished | RoundPhase::Closed(_))
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
