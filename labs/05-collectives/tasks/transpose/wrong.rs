//! Answers to `transpose`: wrong ones, and unusual right ones.

use anyhow::Result;
use c10d::{ProcessGroup, Rank, Splits};
use lockstep_answers::edit;
use tch::{Kind, Tensor};

/// Reshapes the ranks' parts instead of putting them side by side.
#[edit(Tensor::cat(&output.chunk(group.size().get() as i64, 0), 1) => output.view([block.size()[1] / group.size().get() as i64, -1]))]
pub fn viewed() {}

/// Exchanges the right columns but does not transpose them.
#[edit(block.tr().contiguous() => Tensor::cat(&block.chunk(group.size().get() as i64, 1), 0))]
#[edit(Tensor::cat(&output.chunk(group.size().get() as i64, 0), 1) => output)]
pub fn columns() {}

/// Sends a transposed tensor without `contiguous`.
#[edit(block.tr().contiguous() => block.tr())]
#[edit(input.empty_like() => Tensor::zeros(input.size(), (input.kind(), input.device())))]
pub fn strided() {}

/// Gathers the whole matrix on every rank and keeps its columns.
pub fn gathers(group: &ProcessGroup, block: &Tensor) -> Result<Tensor> {
    let mut all: Vec<Tensor> = group.members().iter().map(|_| block.zeros_like()).collect();
    group.all_gather(&mut all, block)?;
    let own = group.rank().get();
    Ok(Tensor::cat(&all, 0).chunk(group.size().get() as i64, 1).swap_remove(own).tr())
}

/// Divides its rows among the ranks, and transposes afterwards.
#[edit(block.tr().contiguous() => block)]
#[edit(Tensor::cat(&output.chunk(group.size().get() as i64, 0), 1) => output.tr().contiguous())]
pub fn own_rows() {}

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

/// Sends whole blocks to all, each of which keeps its columns.
pub fn whole_blocks(group: &ProcessGroup, block: &Tensor) -> Result<Tensor> {
    let (size, me) = (group.size().get(), group.rank().get() as i64);
    let inputs: Vec<Tensor> = (0..size).map(|_| block.contiguous()).collect();
    let mut outputs: Vec<Tensor> = inputs.iter().map(Tensor::zeros_like).collect();
    group.all_to_all(&mut outputs, &inputs)?;
    let each = block.size()[1] / size as i64;
    let mine: Vec<Tensor> = outputs.iter().map(|block| block.narrow(1, me * each, each).transpose(0, 1)).collect();
    Ok(Tensor::cat(&mine, 1))
}

/// Exchanges each row of the block in a separate call.
pub fn each_row(group: &ProcessGroup, block: &Tensor) -> Result<Tensor> {
    let (rows, columns) = block.size2()?;
    let size = group.size().get() as i64;
    let mut all = Vec::new();
    for row in 0..rows {
        let input = block.get(row).contiguous();
        let mut output = Tensor::zeros([columns], (block.kind(), block.device()));
        group.all_to_all_single(&mut output, &input, &Splits::Equal)?;
        all.push(output.view([size, columns / size]));
    }
    // [row, rank, column] to [column, rank, row]
    Ok(Tensor::stack(&all, 0).permute([2, 1, 0]).reshape([columns / size, size * rows]))
}

/// Sends single precision.
#[edit(block.tr() => block.to_kind(Kind::Float).tr())]
pub fn single_precision() {}

/// Right: exchanges the parts as messages between each two ranks.
pub fn messages(group: &ProcessGroup, block: &Tensor) -> Result<Tensor> {
    let (size, me) = (group.size().get(), group.rank().get());
    let parts: Vec<Tensor> = block.transpose(0, 1).chunk(size as i64, 0).iter().map(Tensor::contiguous).collect();
    let mut works = Vec::new();
    let mut coming = Vec::new();
    for (rank, part) in parts.iter().enumerate() {
        if rank == me {
            continue;
        }
        works.push(group.isend(part.copy(), Rank::new(rank), 0)?);
        coming.push((rank, group.irecv(part.zeros_like(), Rank::new(rank), 0)?));
    }
    let mut arrived = parts;
    for (rank, work) in coming {
        arrived[rank] = work.wait()?;
    }
    for work in works {
        let _ = work.wait()?;
    }
    Ok(Tensor::cat(&arrived, 1))
}
