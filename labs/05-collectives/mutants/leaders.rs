//! Wrong answers to `leaders`.

use anyhow::{Context, Result};
use c10d::{ProcessGroup, Rank, ReduceOp};
use tch::Tensor;

/// Does not pass the result on from the leaders.
pub fn keep_it(group: &ProcessGroup, nodes: &[usize], tensor: &mut Tensor) -> Result<()> {
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
    Ok(())
}

/// Names roots by their ranks in the job.
pub fn job_ranks(group: &ProcessGroup, nodes: &[usize], tensor: &mut Tensor) -> Result<()> {
    let (mut first, mut firsts, mut own) = (0, Vec::new(), None);
    for size in nodes {
        let members: Vec<Rank> = (first..first + size).map(Rank::new).collect();
        own = group.new_group(&members, &Default::default())?.or(own);
        firsts.push(members[0]);
        first += size;
    }
    let among_leaders = group.new_group(&firsts, &Default::default())?;
    let node = own.context("every rank is on some node")?;
    let leader = node.members()[0];
    node.reduce(tensor, leader, ReduceOp::Sum)?;
    if let Some(leaders) = among_leaders {
        leaders.all_reduce(tensor, ReduceOp::Sum)?;
    }
    Ok(node.broadcast(tensor, leader)?)
}

/// Adds up within the nodes only.
pub fn one_level(group: &ProcessGroup, nodes: &[usize], tensor: &mut Tensor) -> Result<()> {
    let (mut first, mut firsts, mut own) = (0, Vec::new(), None);
    for size in nodes {
        let members: Vec<Rank> = (first..first + size).map(Rank::new).collect();
        own = group.new_group(&members, &Default::default())?.or(own);
        firsts.push(members[0]);
        first += size;
    }
    let among_leaders = group.new_group(&firsts, &Default::default())?;
    let node = own.context("every rank is on some node")?;
    drop(among_leaders);
    Ok(node.all_reduce(tensor, ReduceOp::Sum)?)
}

/// Creates the leaders' group on the leaders only.
pub fn members_only(group: &ProcessGroup, nodes: &[usize], tensor: &mut Tensor) -> Result<()> {
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
