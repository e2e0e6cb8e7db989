//! Opens the right GPU, and hides none.

use anyhow::Result;

use crate::cuda::{Gpu, Process};

pub fn visible(process: &mut Process, local_rank: usize) -> Result<Gpu> {
    process.open(local_rank)
}
