//! Answers to `transpose`: wrong ones, and unusual right ones.

use anyhow::Result;
use c10d::{ProcessGroup, Splits};
use tch::Tensor;

/// Reshapes the ranks' parts instead of putting them side by side.
pub fn viewed(group: &ProcessGroup, block: &Tensor) -> Result<Tensor> {
    let input = block.tr().contiguous();
    let mut output = input.empty_like();
    group.all_to_all_single(&mut output, &input, &Splits::Equal)?;
    Ok(output.view([block.size()[1] / group.size().get() as i64, -1]))
}

/// Exchanges the right columns but does not transpose them.
pub fn columns(group: &ProcessGroup, block: &Tensor) -> Result<Tensor> {
    let size = group.size().get() as i64;
    let columns: Vec<Tensor> = block.chunk(size, 1);
    let input = Tensor::cat(&columns, 0);
    let mut output = input.empty_like();
    group.all_to_all_single(&mut output, &input, &Splits::Equal)?;
    Ok(output)
}

/// Sends a transposed tensor without `contiguous`.
pub fn strided(group: &ProcessGroup, block: &Tensor) -> Result<Tensor> {
    let input = block.tr();
    let mut output = Tensor::zeros(input.size(), (input.kind(), input.device()));
    group.all_to_all_single(&mut output, &input, &Splits::Equal)?;
    Ok(Tensor::cat(&output.chunk(group.size().get() as i64, 0), 1))
}

/// Right, with more traffic than necessary: gathers the whole matrix on every rank and keeps its columns.
pub fn gathers(group: &ProcessGroup, block: &Tensor) -> Result<Tensor> {
    let mut all: Vec<Tensor> = group.members().iter().map(|_| block.zeros_like()).collect();
    group.all_gather(&mut all, block)?;
    let own = group.rank().get();
    Ok(Tensor::cat(&all, 0).chunk(group.size().get() as i64, 1).swap_remove(own).tr())
}
