//! The ranks that a round assigns to its nodes.
//!
//! The ranks of a node are contiguous, in the order of group ranks; role ranks count only nodes of the same role, as in
//! `_assign_worker_ranks` of torch/distributed/elastic/agent/server/api.py.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::node::Node;

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

/// Assigns ranks to `nodes`, which are in the order of their group ranks.
pub(super) fn assign_ranks<'a>(nodes: impl Iterator<Item = &'a Node> + Clone) -> Vec<RankAssignment> {
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
