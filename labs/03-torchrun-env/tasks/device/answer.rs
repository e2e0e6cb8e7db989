//! Task 2: who am I here, and who in the job? Spot the bug.
//!
//! A process needs its place for three decisions: its rank in the process group, its GPU, and whether it is the one process of
//! the job that saves. Nodes may have different numbers of GPUs.

use anyhow::{Result, ensure};

use crate::environment::Worker;

/// The three decisions.
#[derive(Clone, Debug, PartialEq)]
pub struct Decisions {
    /// The rank with which it joins the process group.
    pub group_rank: usize,
    /// The number of its GPU on its node.
    pub gpu: usize,
    /// True if it saves the snapshots. Exactly one process of the job does.
    pub saves: bool,
}

/// Decides for a process on a node with `gpus` GPUs. The first process of a node uses GPU 0, the second GPU 1.
///
/// # Errors
/// When the node has no GPU left for this process.
pub fn device(worker: &Worker, gpus: usize) -> Result<Decisions> {
    let Worker { rank, local_rank, .. } = *worker;
    ensure!(local_rank < gpus, "local rank {local_rank} (rank {rank}) has no GPU: this node has {gpus}");
    // <answer>
    //~ Ok(Decisions { group_rank: local_rank, gpu: local_rank, saves: local_rank == 0 })
    Ok(Decisions { group_rank: rank, gpu: local_rank, saves: rank == 0 })
    // </answer>
}
