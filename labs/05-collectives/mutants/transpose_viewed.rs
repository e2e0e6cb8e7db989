//! What comes from the ranks is not put side by side, only given the right shape.

use anyhow::Result;
use c10d::{ProcessGroup, Splits};
use tch::Tensor;

pub fn transpose(group: &ProcessGroup, block: &Tensor) -> Result<Tensor> {
    let input = block.tr().contiguous();
    let mut output = input.empty_like();
    group.all_to_all_single(&mut output, &input, &Splits::Equal)?;
    Ok(output.view([block.size()[1] / group.size().get() as i64, -1]))
}
