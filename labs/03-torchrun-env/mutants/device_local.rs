//! The local rank for everything, as the tutorials' `gpu_id`.

use crate::device::Place;
use crate::environment::Worker;

pub fn device(worker: &Worker, gpus: usize) -> anyhow::Result<Place> {
    let rank = worker.local_rank;
    anyhow::ensure!(rank < gpus, "no GPU");
    Ok(Place { group_rank: rank, gpu: rank, saves: rank == 0 })
}
