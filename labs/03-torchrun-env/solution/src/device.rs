//! Task 2: who am I here, and who in the job? Spot the bug.
//!
//! A process asks its place three times: for its number in the process group, for its GPU, and whether it is the one process
//! of the job that saves. Nodes need not have equally many GPUs.

use anyhow::{Result, ensure};

use crate::environment::Worker;

/// What a process does with its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// Its number in the process group, as which it calls `init_process_group`.
    pub group_rank: usize,
    /// The GPU that it uses, of those of its node.
    pub gpu: usize,
    /// Whether it saves the snapshots. One process of the job does.
    pub saves: bool,
}

/// For a process on a node with `gpus` GPUs: the first process of a node uses GPU 0, the second GPU 1.
///
/// # Errors
/// When the node has no GPU left for this process.
pub fn device(worker: &Worker, gpus: usize) -> Result<Place> {
    let Worker { rank, local_rank, .. } = *worker;
    ensure!(local_rank < gpus, "local rank {local_rank} (rank {rank}) has no GPU: this node has {gpus}");
    // <answer>
    //~ Ok(Place { group_rank: local_rank, gpu: local_rank, saves: local_rank == 0 })
    Ok(Place { group_rank: rank, gpu: local_rank, saves: rank == 0 })
    // </answer>
}
