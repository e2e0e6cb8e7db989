//! The first process of each node saves.

use crate::device::Place;
use crate::environment::Worker;

pub fn device(worker: &Worker, gpus: usize) -> anyhow::Result<Place> {
    anyhow::ensure!(worker.local_rank < gpus, "no GPU");
    Ok(Place { group_rank: worker.rank, gpu: worker.local_rank, saves: worker.local_rank == 0 })
}
