//! The rank for everything.

use crate::device::Place;
use crate::environment::Worker;

pub fn device(worker: &Worker, gpus: usize) -> anyhow::Result<Place> {
    anyhow::ensure!(worker.local_rank < gpus, "no GPU");
    let rank = worker.rank;
    Ok(Place { group_rank: rank, gpu: rank, saves: rank == 0 })
}
