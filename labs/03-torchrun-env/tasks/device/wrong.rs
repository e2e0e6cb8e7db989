//! Wrong answers to `device`.

use crate::device::Decisions;
use crate::environment::Worker;

/// The given program: uses the local rank for everything, as the tutorials use `gpu_id`.
pub fn local(worker: &Worker, gpus: usize) -> anyhow::Result<Decisions> {
    let rank = worker.local_rank;
    anyhow::ensure!(rank < gpus, "no GPU");
    Ok(Decisions { group_rank: rank, gpu: rank, saves: rank == 0 })
}

/// Uses the rank for everything.
pub fn global(worker: &Worker, gpus: usize) -> anyhow::Result<Decisions> {
    anyhow::ensure!(worker.local_rank < gpus, "no GPU");
    let rank = worker.rank;
    Ok(Decisions { group_rank: rank, gpu: rank, saves: rank == 0 })
}

/// Assumes that all nodes have the same number of GPUs.
pub fn modulo(worker: &Worker, gpus: usize) -> anyhow::Result<Decisions> {
    anyhow::ensure!(worker.local_rank < gpus, "no GPU");
    Ok(Decisions { group_rank: worker.rank, gpu: worker.rank % gpus, saves: worker.rank == 0 })
}

/// Saves on the first process of each node.
pub fn node_saves(worker: &Worker, gpus: usize) -> anyhow::Result<Decisions> {
    anyhow::ensure!(worker.local_rank < gpus, "no GPU");
    Ok(Decisions { group_rank: worker.rank, gpu: worker.local_rank, saves: worker.local_rank == 0 })
}
