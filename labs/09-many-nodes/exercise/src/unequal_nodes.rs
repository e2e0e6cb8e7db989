//! Task 2: unequal nodes. Spot the bug.
//!
//! Nodes may have different numbers of workers. Each process knows the number of its node, its number on that node, and how many workers
//! each node has. These numbers give its rank, which no other process has, and its share of the samples. All ranks take equally many: with
//! different numbers of steps, the last collective would hang.

use anyhow::{Result, ensure};

/// A process's place in the job.
#[derive(Clone, Debug, PartialEq)]
pub struct Placement {
    /// Its number among all processes.
    pub rank: usize,
    /// The number of all processes.
    pub world_size: usize,
    /// The positions of its samples in an epoch's order: rank, rank + world size, rank + 2 · world size, … Where too few samples are left
    /// for all ranks, the first ones are taken again.
    pub positions: Vec<usize>,
}

/// Returns the place of process `local_rank` on node `node`, where node n has `workers[n]` workers.
///
/// # Errors
/// When there is no such process.
pub fn unequal_nodes(workers: &[usize], node: usize, local_rank: usize, samples: usize) -> Result<Placement> {
    let here = workers[node];
    let world_size = workers.len() * here;
    let rank = node * here + local_rank;
    let positions = (rank..samples).step_by(world_size).collect();
    Ok(Placement { rank, world_size, positions })
}
