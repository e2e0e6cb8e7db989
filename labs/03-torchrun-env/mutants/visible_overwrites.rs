//! Takes the GPU of its local rank, whosever it is.

use anyhow::Result;

use crate::cuda::{Gpu, Process, VISIBLE};

pub fn visible(process: &mut Process, local_rank: usize) -> Result<Gpu> {
    process.set_variable(VISIBLE, &local_rank.to_string());
    process.open(0)
}
