//! Right, in its own way: makes a list of the job's GPUs first, and leaves it to CUDA to find that there is none.

use anyhow::Result;

use crate::cuda::{Gpu, Process, VISIBLE};

pub fn visible(process: &mut Process, local_rank: usize) -> Result<Gpu> {
    let all = (0..64).map(|gpu| gpu.to_string()).collect::<Vec<_>>().join(",");
    let gpus: Vec<String> = process.variable(VISIBLE).unwrap_or(&all).split(',').map(str::to_owned).collect();
    process.set_variable(VISIBLE, gpus.get(local_rank).map_or("", String::as_str));
    process.open(0)
}
