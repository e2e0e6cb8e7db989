//! Answers to `transpose`: wrong ones, and unusual right ones.

use anyhow::Result;
use c10d::{ProcessGroup, Rank, Splits};
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

/// Gathers the whole matrix on every rank and keeps its columns.
pub fn gathers(group: &ProcessGroup, block: &Tensor) -> Result<Tensor> {
    let mut all: Vec<Tensor> = group.members().iter().map(|_| block.zeros_like()).collect();
    group.all_gather(&mut all, block)?;
    let own = group.rank().get();
    Ok(Tensor::cat(&all, 0).chunk(group.size().get() as i64, 1).swap_remove(own).tr())
}

/// Divides its rows among the ranks, and transposes afterwards.
pub fn own_rows(group: &ProcessGroup, block: &Tensor) -> Result<Tensor> {
    let mut output = block.zeros_like();
    group.all_to_all_single(&mut output, block, &Splits::Equal)?;
    Ok(output.tr().contiguous())
}

/// Right: every rank in turn scatters its parts.
pub fn scatters(group: &ProcessGroup, block: &Tensor) -> Result<Tensor> {
    let parts: Vec<Tensor> =
        block.tr().chunk(group.size().get() as i64, 0).iter().map(|part| part.contiguous()).collect();
    let part_from = |root: usize| {
        let (root, mut part) = (Rank::new(root), parts[0].zeros_like());
        group.scatter(&mut part, if root == group.rank() { &parts } else { &[] }, root)?;
        anyhow::Ok(part)
    };
    Ok(Tensor::cat(&(0..group.size().get()).map(part_from).collect::<Result<Vec<_>>>()?, 1))
}
