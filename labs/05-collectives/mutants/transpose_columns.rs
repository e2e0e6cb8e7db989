//! The right columns, not transposed.

use anyhow::Result;
use c10d::{ProcessGroup, Splits};
use tch::Tensor;

pub fn transpose(group: &ProcessGroup, block: &Tensor) -> Result<Tensor> {
    let size = group.size().get() as i64;
    let columns: Vec<Tensor> = block.chunk(size, 1);
    let input = Tensor::cat(&columns, 0);
    let mut output = input.empty_like();
    group.all_to_all_single(&mut output, &input, &Splits::Equal)?;
    Ok(output)
}
