//! A transposed tensor is sent as it is: its rows do not lie in memory one after the other.

use anyhow::Result;
use c10d::{ProcessGroup, Splits};
use tch::Tensor;

pub fn transpose(group: &ProcessGroup, block: &Tensor) -> Result<Tensor> {
    let input = block.tr();
    let mut output = Tensor::zeros(input.size(), (input.kind(), input.device()));
    group.all_to_all_single(&mut output, &input, &Splits::Equal)?;
    Ok(Tensor::cat(&output.chunk(group.size().get() as i64, 0), 1))
}
