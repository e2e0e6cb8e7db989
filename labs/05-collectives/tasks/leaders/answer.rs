//! Task 4: an all-reduce on two levels.
//!
//! Messages are slow between nodes and fast within a node. So the ranks of a node first add up among themselves. Then one rank
//! of each node, its leader, adds up with the other leaders. Finally the leaders pass the result on within their nodes. Only the
//! second step sends messages between nodes. Nodes may have different numbers of ranks.

use anyhow::{Context, Result};
use c10d::{ProcessGroup, Rank, ReduceOp};
use tch::Tensor;

/// Replaces `tensor` by its sum over all ranks, on every rank. Node n has `nodes[n]` ranks: the first ranks are on node 0, the
/// next ones on node 1, and so on. The lowest rank of a node is its leader. Only leaders send between nodes. A rank that only starts an
/// operation (`reduce_async`) has to `wait` for it before the next step.
pub fn leaders(group: &ProcessGroup, nodes: &[usize], tensor: &mut Tensor) -> Result<()> {
    // <answer>
    //~ // `group.new_group(&ranks, &Default::default())?` is `Some` for the group's members. Every rank must call it for every
    //~ // group, in the same order. A group numbers its members from 0: its first member is `Rank::ZERO` there.
    //~ todo!("add up within the node, then among the leaders, and pass the result on within the node")
    let (mut first, mut firsts, mut own) = (0, Vec::new(), None);
    for size in nodes {
        let members: Vec<Rank> = (first..first + size).map(Rank::new).collect();
        own = group.new_group(&members, &Default::default())?.or(own);
        firsts.push(members[0]);
        first += size;
    }
    let among_leaders = group.new_group(&firsts, &Default::default())?;
    let node = own.context("every rank is on some node")?;
    node.reduce(tensor, Rank::ZERO, ReduceOp::Sum)?;
    if let Some(leaders) = among_leaders {
        leaders.all_reduce(tensor, ReduceOp::Sum)?;
    }
    Ok(node.broadcast(tensor, Rank::ZERO)?)
    // </answer>
}
