//! Answers to `leaders`: wrong ones, and an unusual right one.

use anyhow::{Context, Result};
use c10d::{ProcessGroup, Rank, ReduceOp};
use lockstep_answers::edit;
use tch::Tensor;

/// Does not pass the result on from the leaders.
#[edit(Ok(node.broadcast(tensor, Rank::ZERO)?) => Ok(()))]
pub fn keep_it() {}

/// Names roots by their ranks in the job.
#[edit(node.reduce(tensor, Rank::ZERO, ReduceOp::Sum) => node.reduce(tensor, node.members()[0], ReduceOp::Sum))]
#[edit(node.broadcast(tensor, Rank::ZERO) => node.broadcast(tensor, node.members()[0]))]
pub fn job_ranks() {}

/// Adds up within the nodes only.
#[edit(node.reduce(tensor, Rank::ZERO, ReduceOp::Sum)?; if let Some(leaders) = among_leaders { leaders.all_reduce(tensor, ReduceOp::Sum)?; } Ok(node.broadcast(tensor, Rank::ZERO)?) =>
    Ok(node.all_reduce(tensor, ReduceOp::Sum)?)
)]
pub fn one_level() {}

/// Creates the leaders' group on the leaders only.
#[edit(let among_leaders = group.new_group(&firsts, &Default::default())?; => )]
#[edit(if let Some(leaders) = among_leaders => if node.rank().is_zero() && let Some(leaders) = group.new_group(&firsts, &Default::default())?)]
pub fn members_only() {}

/// Lets the other ranks sleep until their leader is ready, but never wakes them.
#[edit({ leaders.all_reduce(tensor, ReduceOp::Sum)?; } => { leaders.all_reduce(tensor, ReduceOp::Sum)?; } else { std::thread::park(); })]
pub fn sleeps() {}

/// Lets the last rank sleep before it makes the groups.
#[edit(let among_leaders => if group.rank().get() + 1 == group.size().get() { std::thread::park(); } let among_leaders)]
pub fn one_sleeps() {}

/// Starts the first step, and sleeps until its result should be there.
#[edit(node.reduce(tensor, Rank::ZERO, ReduceOp::Sum)?; => {
        let work = node.reduce_async(tensor.shallow_clone(), Rank::ZERO, ReduceOp::Sum)?;
        while !work.is_completed() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    })]
pub fn sleeps_until_completed() {}

/// Right: starts the first step, and waits for it.
#[edit(node.reduce(tensor, Rank::ZERO, ReduceOp::Sum)?; => *tensor = node.reduce_async(tensor.shallow_clone(), Rank::ZERO, ReduceOp::Sum)?.wait()?;)]
pub fn waits() {}

/// Adds up over all ranks at once.
pub fn at_once(group: &ProcessGroup, _: &[usize], tensor: &mut Tensor) -> Result<()> {
    Ok(group.all_reduce(tensor, ReduceOp::Sum)?)
}

/// Adds up among the leaders, and passes the result on from rank 0 to the whole job.
#[edit(leaders.all_reduce(tensor, ReduceOp::Sum) => leaders.reduce(tensor, Rank::ZERO, ReduceOp::Sum))]
#[edit(node.broadcast => group.broadcast)]
pub fn from_rank_0() {}

/// Takes all nodes for as large as the first.
pub fn as_the_first(group: &ProcessGroup, nodes: &[usize], tensor: &mut Tensor) -> Result<()> {
    let (size, mut firsts, mut own) = (group.size().get(), Vec::new(), None);
    for first in (0..size).step_by(nodes[0]) {
        let members: Vec<Rank> = (first..size.min(first + nodes[0])).map(Rank::new).collect();
        own = group.new_group(&members, &Default::default())?.or(own);
        firsts.push(members[0]);
    }
    let among_leaders = group.new_group(&firsts, &Default::default())?;
    let node = own.context("every rank is on some node")?;
    node.reduce(tensor, Rank::ZERO, ReduceOp::Sum)?;
    if let Some(leaders) = among_leaders {
        leaders.all_reduce(tensor, ReduceOp::Sum)?;
    }
    Ok(node.broadcast(tensor, Rank::ZERO)?)
}

/// Adds up within the node again in the last step.
#[edit(node.broadcast(tensor, Rank::ZERO) => node.all_reduce(tensor, ReduceOp::Sum))]
pub fn adds_again() {}

/// Right: messages within the nodes, in the group of all ranks; a group for the leaders only.
pub fn messages(group: &ProcessGroup, nodes: &[usize], tensor: &mut Tensor) -> Result<()> {
    let starts: Vec<usize> = (0..nodes.len()).map(|node| nodes[..node].iter().sum()).collect();
    let leaders: Vec<Rank> = starts.iter().copied().map(Rank::new).collect();
    let among_leaders = group.new_group(&leaders, &Default::default())?;
    let me = group.rank();
    let node = starts.iter().rposition(|start| *start <= me.get()).context("every rank is on some node")?;
    let leader = leaders[node];
    if me != leader {
        group.send(tensor, leader, 0)?;
        return Ok(group.recv(tensor, leader, 1)?);
    }
    let mates: Vec<Rank> = (starts[node] + 1..starts[node] + nodes[node]).map(Rank::new).collect();
    for mate in &mates {
        let mut theirs = tensor.zeros_like();
        group.recv(&mut theirs, *mate, 0)?;
        *tensor += theirs;
    }
    among_leaders.context("this is a leader")?.all_reduce(tensor, ReduceOp::Sum)?;
    mates.iter().try_for_each(|mate| group.send(tensor, *mate, 1))?;
    Ok(())
}

/// Lets all ranks take part in the second step, when each has the sum of its node.
#[edit(node.reduce(tensor, Rank::ZERO, ReduceOp::Sum)?; if let Some(leaders) = among_leaders { leaders.all_reduce(tensor, ReduceOp::Sum)?; } Ok(node.broadcast(tensor, Rank::ZERO)?) =>
    node.all_reduce(tensor, ReduceOp::Sum)?;
    drop(among_leaders);
    Ok(group.all_reduce(tensor, ReduceOp::Sum)?)
)]
pub fn all_in_second_step() {}

/// Adds up among the leaders twice.
#[edit({ leaders.all_reduce(tensor, ReduceOp::Sum)?; } => { leaders.all_reduce(tensor, ReduceOp::Sum)?; leaders.all_reduce(tensor, ReduceOp::Sum)?; })]
pub fn leaders_twice() {}

/// Reduces among the leaders, which leaves the sum on the first one.
#[edit(leaders.all_reduce(tensor, ReduceOp::Sum) => leaders.reduce(tensor, Rank::ZERO, ReduceOp::Sum))]
pub fn one_leader() {}
