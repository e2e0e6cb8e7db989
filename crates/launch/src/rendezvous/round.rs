//! A round that runs: this node's place in it, and the ranks of its workers. A node gets its own place and the totals, which is all
//! that workers need and does not grow with the number of nodes.

use super::message::Cause;
use super::node::Node;
use super::state::RankAssignment;

/// A round from the view of one member.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Round {
    /// The number of the round, from 0.
    pub number: u64,
    /// This node's ranks.
    pub ranks: RankAssignment,
    /// This node.
    pub me: Node,
    /// The node of group rank 0.
    pub first: Node,
    /// The number of nodes (GROUP_WORLD_SIZE).
    pub nodes: usize,
    /// The number of workers of all nodes (WORLD_SIZE).
    pub world_size: usize,
    /// Why this round was formed.
    pub cause: Cause,
}

/// The ranks of one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankSet {
    /// RANK.
    pub rank: usize,
    /// ROLE_RANK.
    pub role_rank: usize,
    /// ROLE_WORLD_SIZE.
    pub role_world_size: usize,
}

impl Round {
    /// This node's position among the nodes (GROUP_RANK).
    #[must_use]
    pub fn group_rank(&self) -> usize {
        self.ranks.group_rank
    }

    /// The ranks of this node's worker `local_rank`; `None` if it does not exist.
    #[must_use]
    pub fn ranks_of(&self, local_rank: usize) -> Option<RankSet> {
        let ranks = &self.ranks;
        (local_rank < self.me.local_world_size).then(|| RankSet {
            rank: ranks.first_rank + local_rank,
            role_rank: ranks.first_role_rank + local_rank,
            role_world_size: ranks.role_world_size,
        })
    }
}
