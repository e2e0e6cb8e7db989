//! Counts the GPUs before the variable is set.

use anyhow::{Context, Result, ensure};

use crate::cuda::{Gpu, Process, VISIBLE};

pub fn visible(process: &mut Process, local_rank: usize) -> Result<Gpu> {
    ensure!(local_rank < process.device_count(), "no GPU for local rank {local_rank}");
    let own = match process.variable(VISIBLE) {
        Some(list) => list.split(',').nth(local_rank).context("the list is too short")?.to_owned(),
        None => local_rank.to_string(),
    };
    process.set_variable(VISIBLE, &own);
    process.open(0)
}
