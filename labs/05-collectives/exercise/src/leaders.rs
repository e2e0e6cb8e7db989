//! Task 4: an all-reduce on two levels.
//!
//! Between nodes a message is slow, within a node it is fast. So the ranks of a node first add up among themselves, then one rank
//! of each node, its leader, adds up with the other leaders, and at last the leaders pass the result on within their nodes. Only
//! the second step leaves a node. Nodes need not have equally many ranks.

use anyhow::{Context, Result};
use c10d::{ProcessGroup, Rank, ReduceOp};
use tch::Tensor;

/// Replaces `tensor` by its sum over all ranks, on all. Node n has `nodes[n]` ranks: the first ones are on node 0, those after
/// them on node 1, and so on. The lowest rank of a node is its leader.
pub fn leaders(group: &ProcessGroup, nodes: &[usize], tensor: &mut Tensor) -> Result<()> {
    // `group.new_group(&ranks, &Default::default())?` is `Some` for the group's members. Every rank must call it for every
    // group, in the same order. In a group ranks count anew: its first member is `Rank::ZERO` there.
    todo!("add up within the node, then among the leaders, and pass the result on within the node")
}
