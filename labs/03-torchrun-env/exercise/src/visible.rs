//! Task 4: one GPU for each process. Spot the bug.
//!
//! A process hides all GPUs from itself but its own, so that nothing in it can use another's by mistake. (CUDA is simulated
//! here: see `given/cuda.rs`.) Where a batch system has set `CUDA_VISIBLE_DEVICES`, these are the GPUs of the job; the others of
//! the node belong to somebody else.

use anyhow::{Context, Result, ensure};

use crate::cuda::{Gpu, Process, VISIBLE};

/// Opens the GPU of a process: of those that the job has on this node, the one of its local rank. The process sees no other.
///
/// # Errors
/// When the job has too few.
pub fn visible(process: &mut Process, local_rank: usize) -> Result<Gpu> {
    let gpus = process.device_count();
    ensure!(local_rank < gpus, "local rank {local_rank} has no GPU: there are {gpus}");
    let own = match process.variable(VISIBLE) {
        Some(list) => list.split(',').nth(local_rank).context("the list is too short")?.to_owned(),
        None => local_rank.to_string(),
    };
    process.set_variable(VISIBLE, &own);
    process.open(0)
}
