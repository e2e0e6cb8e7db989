//! Other answers to `visible`: wrong ones, and right ones that look unusual.

use anyhow::{Context, Result, ensure};

use crate::cuda::{Gpu, Process, VISIBLE};

/// Counts the GPUs before the variable is set.
pub fn late(process: &mut Process, local_rank: usize) -> Result<Gpu> {
    ensure!(local_rank < process.device_count(), "no GPU for local rank {local_rank}");
    let own = match process.variable(VISIBLE) {
        Some(list) => list.split(',').nth(local_rank).context("the list is too short")?.to_owned(),
        None => local_rank.to_string(),
    };
    process.set_variable(VISIBLE, &own);
    process.open(0)
}

/// Opens the GPU by its number in the machine, of those that are left.
pub fn ordinal(process: &mut Process, local_rank: usize) -> Result<Gpu> {
    let own = match process.variable(VISIBLE) {
        Some(list) => list.split(',').nth(local_rank).context("the list is too short")?.to_owned(),
        None => local_rank.to_string(),
    };
    process.set_variable(VISIBLE, &own);
    process.open(local_rank)
}

/// Takes the GPU of its local rank, whosever it is.
pub fn overwrites(process: &mut Process, local_rank: usize) -> Result<Gpu> {
    process.set_variable(VISIBLE, &local_rank.to_string());
    process.open(0)
}

/// Opens the right GPU, and hides none.
pub fn shows_all(process: &mut Process, local_rank: usize) -> Result<Gpu> {
    process.open(local_rank)
}

/// Right, in its own way: makes a list of the job's GPUs first, and leaves it to CUDA to find that there is none.
pub fn collects(process: &mut Process, local_rank: usize) -> Result<Gpu> {
    let all = (0..64).map(|gpu| gpu.to_string()).collect::<Vec<_>>().join(",");
    let gpus: Vec<String> = process.variable(VISIBLE).unwrap_or(&all).split(',').map(str::to_owned).collect();
    process.set_variable(VISIBLE, gpus.get(local_rank).map_or("", String::as_str));
    process.open(0)
}
