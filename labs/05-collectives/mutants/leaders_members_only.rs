//! Only leaders make the leaders' group.

use anyhow::{Context, Result};
use c10d::{ProcessGroup, Rank, ReduceOp};
use tch::Tensor;

pub fn leaders(group: &ProcessGroup, nodes: &[usize], tensor: &mut Tensor) -> Result<()> {
    let (mut first, mut firsts, mut own) = (0, Vec::new(), None);
    for size in nodes {
        let members: Vec<Rank> = (first..first + size).map(Rank::new).collect();
        own = group.new_group(&members, &Default::default())?.or(own);
        firsts.push(members[0]);
        first += size;
    }
    let node = own.context("every rank is on some node")?;
    node.reduce(tensor, Rank::ZERO, ReduceOp::Sum)?;
    if node.rank().is_zero() {
        let leaders = group.new_group(&firsts, &Default::default())?.context("a leader is a member")?;
        leaders.all_reduce(tensor, ReduceOp::Sum)?;
    }
    Ok(node.broadcast(tensor, Rank::ZERO)?)
}
