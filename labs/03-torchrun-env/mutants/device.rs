//! Wrong answers to `device`.

use crate::device::Place;
use crate::environment::Worker;

/// The local rank for everything, as the tutorials' `gpu_id`.
pub fn local(worker: &Worker, gpus: usize) -> anyhow::Result<Place> {
    let rank = worker.local_rank;
    anyhow::ensure!(rank < gpus, "no GPU");
    Ok(Place { group_rank: rank, gpu: rank, saves: rank == 0 })
}

/// The rank for everything.
pub fn global(worker: &Worker, gpus: usize) -> anyhow::Result<Place> {
    anyhow::ensure!(worker.local_rank < gpus, "no GPU");
    let rank = worker.rank;
    Ok(Place { group_rank: rank, gpu: rank, saves: rank == 0 })
}

/// Counts the GPUs as if all nodes were alike.
pub fn modulo(worker: &Worker, gpus: usize) -> anyhow::Result<Place> {
    anyhow::ensure!(worker.local_rank < gpus, "no GPU");
    Ok(Place { group_rank: worker.rank, gpu: worker.rank % gpus, saves: worker.rank == 0 })
}

/// The first process of each node saves.
pub fn node_saves(worker: &Worker, gpus: usize) -> anyhow::Result<Place> {
    anyhow::ensure!(worker.local_rank < gpus, "no GPU");
    Ok(Place { group_rank: worker.rank, gpu: worker.local_rank, saves: worker.local_rank == 0 })
}
