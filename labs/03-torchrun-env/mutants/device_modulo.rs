//! Counts the GPUs as if all nodes were alike.

use crate::device::Place;
use crate::environment::Worker;

pub fn device(worker: &Worker, gpus: usize) -> anyhow::Result<Place> {
    anyhow::ensure!(worker.local_rank < gpus, "no GPU");
    Ok(Place { group_rank: worker.rank, gpu: worker.rank % gpus, saves: worker.rank == 0 })
}
