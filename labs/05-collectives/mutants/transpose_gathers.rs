//! Right, with more traffic than needed: every rank gets the whole matrix, and keeps its columns.

use anyhow::Result;
use c10d::ProcessGroup;
use tch::Tensor;

pub fn transpose(group: &ProcessGroup, block: &Tensor) -> Result<Tensor> {
    let mut all: Vec<Tensor> = group.members().iter().map(|_| block.zeros_like()).collect();
    group.all_gather(&mut all, block)?;
    let own = group.rank().get();
    Ok(Tensor::cat(&all, 0).chunk(group.size().get() as i64, 1).swap_remove(own).tr())
}
