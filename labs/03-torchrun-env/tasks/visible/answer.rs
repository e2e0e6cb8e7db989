//! Task 4: one GPU for each process. Spot the bug.
//!
//! A process hides all GPUs except its own from itself, so that its libraries cannot use another one by mistake. (CUDA is simulated here:
//! see `given/simulated.rs`.) If a batch system has set `CUDA_VISIBLE_DEVICES`, it lists the GPUs of the job; the other GPUs of the node
//! belong to other jobs. The list has an order of its own. If it is empty, the job has no GPU.

use anyhow::{Context, Result, ensure};

use crate::simulated::{CudaProcess, Gpu, VISIBLE};

/// Opens the GPU of a process. Its local rank is a position among the job's GPUs on this node. Afterwards the process sees only this GPU.
///
/// # Errors
/// When the job has too few GPUs.
pub fn visible(process: &mut CudaProcess, local_rank: usize) -> Result<Gpu> {
    // <answer>
    //~ let gpus = process.device_count();
    //~ ensure!(local_rank < gpus, "local rank {local_rank} has no GPU: there are {gpus}");
    //~ let own = match process.variable(VISIBLE) {
    //~     Some(list) => list.split(',').nth(local_rank).context("the list is too short")?.to_owned(),
    //~     None => local_rank.to_string(),
    //~ };
    //~ process.set_variable(VISIBLE, &own);
    //~ process.open(0)
    let own = match process.variable(VISIBLE) {
        Some(list) => list.split(',').nth(local_rank).context("the list is too short")?.to_owned(),
        None => local_rank.to_string(),
    };
    process.set_variable(VISIBLE, &own);
    ensure!(process.device_count() == 1, "local rank {local_rank} has no GPU: there is no {own}");
    process.open(0)
    // </answer>
}
