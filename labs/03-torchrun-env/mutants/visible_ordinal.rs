//! Opens the GPU by its number in the machine, of those that are left.

use anyhow::{Context, Result};

use crate::cuda::{Gpu, Process, VISIBLE};

pub fn visible(process: &mut Process, local_rank: usize) -> Result<Gpu> {
    let own = match process.variable(VISIBLE) {
        Some(list) => list.split(',').nth(local_rank).context("the list is too short")?.to_owned(),
        None => local_rank.to_string(),
    };
    process.set_variable(VISIBLE, &own);
    process.open(local_rank)
}
