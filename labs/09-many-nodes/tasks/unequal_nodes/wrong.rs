//! Answers to `unequal_nodes`: wrong ones, and an unusual right one.

use anyhow::{Result, ensure};
use lockstep_answers::{edit, given};

use crate::unequal_nodes::Placement;

fn checked(workers: &[usize], node: usize, local_rank: usize) -> Result<()> {
    ensure!(node < workers.len() && local_rank < workers[node], "there is no process {local_rank} on node {node}");
    Ok(())
}

fn padded(rank: usize, world_size: usize, samples: usize) -> Vec<usize> {
    (0..samples.div_ceil(world_size)).map(|step| (rank + step * world_size) % samples).collect()
}

/// The given program: as if all nodes were like this one.
#[given]
pub fn equal() {}

/// Has the right world size, but counts ranks as if all nodes were like this one.
pub fn times(workers: &[usize], node: usize, local_rank: usize, samples: usize) -> Result<Placement> {
    checked(workers, node, local_rank)?;
    let world_size = workers.iter().sum();
    let rank = node * workers[node] + local_rank;
    Ok(Placement { rank, world_size, positions: padded(rank, world_size, samples) })
}

/// Does not pad: the first ranks have a sample more than the others.
#[edit((0..steps).map(|step| (rank + step * world_size) % samples) => (rank..samples).step_by(world_size))]
pub fn unpadded() {}

/// Gives each node the same number of samples, and shares them there.
pub fn by_node(workers: &[usize], node: usize, local_rank: usize, samples: usize) -> Result<Placement> {
    checked(workers, node, local_rank)?;
    let world_size = workers.iter().sum();
    let rank = workers[..node].iter().sum::<usize>() + local_rank;
    let of_node = samples.div_ceil(workers.len());
    let steps = of_node.div_ceil(workers[node]);
    let position = |step: usize| (node * of_node + local_rank + step * workers[node]) % samples;
    Ok(Placement { rank, world_size, positions: (0..steps).map(position).collect() })
}

/// Numbers the processes over the nodes in turn.
pub fn in_turn(workers: &[usize], node: usize, local_rank: usize, samples: usize) -> Result<Placement> {
    checked(workers, node, local_rank)?;
    let world_size = workers.iter().sum();
    let before = |other: usize| workers[other].min(local_rank + usize::from(other < node));
    let rank = (0..workers.len()).map(before).sum();
    Ok(Placement { rank, world_size, positions: padded(rank, world_size, samples) })
}

/// Gives each node as many ranks as the largest one.
pub fn by_most(workers: &[usize], node: usize, local_rank: usize, samples: usize) -> Result<Placement> {
    checked(workers, node, local_rank)?;
    let world_size = workers.iter().sum();
    let rank = node * workers.iter().max().copied().unwrap_or(0) + local_rank;
    Ok(Placement { rank, world_size, positions: padded(rank, world_size, samples) })
}

/// Fills up with the last sample.
pub fn last_again(workers: &[usize], node: usize, local_rank: usize, samples: usize) -> Result<Placement> {
    let place = lists(workers, node, local_rank, samples)?;
    let position = |step: usize| (place.rank + step * place.world_size).min(samples - 1);
    Ok(Placement { positions: (0..place.positions.len()).map(position).collect(), ..place })
}

/// Fills up with the first samples, once.
pub fn once_again(workers: &[usize], node: usize, local_rank: usize, samples: usize) -> Result<Placement> {
    let place = lists(workers, node, local_rank, samples)?;
    let position = |step: usize| match place.rank + step * place.world_size {
        at if at < samples => at,
        at => at - samples,
    };
    Ok(Placement { positions: (0..place.positions.len()).map(position).collect(), ..place })
}

/// Does not check that there is such a process.
pub fn unchecked(workers: &[usize], node: usize, local_rank: usize, samples: usize) -> Result<Placement> {
    let world_size = workers.iter().sum();
    let rank = workers.iter().take(node).sum::<usize>() + local_rank;
    Ok(Placement { rank, world_size, positions: padded(rank, world_size, samples) })
}

/// Drops the last samples.
pub fn drops(workers: &[usize], node: usize, local_rank: usize, samples: usize) -> Result<Placement> {
    let mut place = lists(workers, node, local_rank, samples)?;
    place.positions.truncate(samples / place.world_size);
    Ok(place)
}

/// Gives each rank a block of samples.
pub fn blocks(workers: &[usize], node: usize, local_rank: usize, samples: usize) -> Result<Placement> {
    let place = lists(workers, node, local_rank, samples)?;
    let each = place.positions.len();
    Ok(Placement { positions: (place.rank * each..(place.rank + 1) * each).map(|at| at % samples).collect(), ..place })
}

/// Right: lists all processes, and cycles through all samples.
pub fn lists(workers: &[usize], node: usize, local_rank: usize, samples: usize) -> Result<Placement> {
    let all: Vec<_> =
        workers.iter().enumerate().flat_map(|(node, here)| (0..*here).map(move |one| (node, one))).collect();
    let Some(rank) = all.iter().position(|place| *place == (node, local_rank)) else {
        anyhow::bail!("no process {local_rank} on node {node}")
    };
    let order = (0..samples).cycle().take(samples.next_multiple_of(all.len()));
    Ok(Placement { rank, world_size: all.len(), positions: order.skip(rank).step_by(all.len()).collect() })
}
