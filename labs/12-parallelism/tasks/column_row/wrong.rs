//! Answers to `column_row`: wrong ones, and unusual right ones.

use anyhow::Result;
use c10d::{ProcessGroup, ReduceOp};
use tch::Tensor;

use crate::layers::Weight;

/// The number of ranks, this rank, and the sizes of a part of f and of h.
fn parts(group: &ProcessGroup, x: &Tensor, first: &Weight) -> (i64, i64, i64, i64) {
    let (ranks, rank) = (group.size().get() as i64, group.rank().get() as i64);
    (ranks, rank, x.size()[1] / ranks, first.size()[0] / ranks)
}

fn gathered(group: &ProcessGroup, part: &Tensor) -> Result<Tensor> {
    let part = part.contiguous();
    let mut all: Vec<Tensor> = (0..group.size().get()).map(|_| part.empty_like()).collect();
    group.all_gather(&mut all, &part)?;
    Ok(Tensor::cat(&all, 1))
}

fn summed(group: &ProcessGroup, mut part: Tensor) -> Result<Tensor> {
    group.all_reduce(&mut part, ReduceOp::Sum)?;
    Ok(part)
}

/// The given program: row-wise, then column-wise.
pub fn row_column(group: &ProcessGroup, x: &Tensor, first: &Weight, second: &Weight) -> Result<Tensor> {
    let (_, rank, part, _) = parts(group, x, first);
    let partial_sum = x.narrow(1, rank * part, part).matmul(&first.columns(rank * part, part).tr());
    let mine = summed(group, partial_sum)?.relu().matmul(&second.rows(rank * part, part).tr());
    gathered(group, &mine)
}

/// Applies the ReLU to the partial sums of a row-wise layer.
pub fn relu_of_parts(group: &ProcessGroup, x: &Tensor, first: &Weight, second: &Weight) -> Result<Tensor> {
    let (_, rank, part, _) = parts(group, x, first);
    let partial_sum = x.narrow(1, rank * part, part).matmul(&first.columns(rank * part, part).tr());
    summed(group, partial_sum.relu().matmul(&second.rows(0, second.size()[0]).tr()))
}

/// Leaves out the all-reduce.
pub fn no_sum(group: &ProcessGroup, x: &Tensor, first: &Weight, second: &Weight) -> Result<Tensor> {
    let (_, rank, _, part) = parts(group, x, first);
    let hidden = x.matmul(&first.rows(rank * part, part).tr()).relu();
    Ok(hidden.matmul(&second.columns(rank * part, part).tr()))
}

/// Gathers the outputs of the first layer, for a second layer that is divided by rows.
pub fn gathers_between(group: &ProcessGroup, x: &Tensor, first: &Weight, second: &Weight) -> Result<Tensor> {
    let (_, rank, rows, part) = parts(group, x, first);
    let hidden = gathered(group, &x.matmul(&first.rows(rank * part, part).tr()).relu())?;
    gathered(group, &hidden.matmul(&second.rows(rank * rows, rows).tr()))
}

/// Takes both weights whole.
pub fn takes_all(_: &ProcessGroup, x: &Tensor, first: &Weight, second: &Weight) -> Result<Tensor> {
    let hidden = x.matmul(&first.rows(0, first.size()[0]).tr()).relu();
    Ok(hidden.matmul(&second.rows(0, second.size()[0]).tr()))
}

/// Takes the next rank's columns of the second weight.
pub fn other_columns(group: &ProcessGroup, x: &Tensor, first: &Weight, second: &Weight) -> Result<Tensor> {
    let (ranks, rank, _, part) = parts(group, x, first);
    let hidden = x.matmul(&first.rows(rank * part, part).tr()).relu();
    summed(group, hidden.matmul(&second.columns((rank + 1) % ranks * part, part).tr()))
}

/// Averages, as with gradients.
pub fn averages(group: &ProcessGroup, x: &Tensor, first: &Weight, second: &Weight) -> Result<Tensor> {
    let (ranks, rank, _, part) = parts(group, x, first);
    let hidden = x.matmul(&first.rows(rank * part, part).tr()).relu();
    Ok(summed(group, hidden.matmul(&second.columns(rank * part, part).tr()))? / ranks)
}

/// Applies the ReLU after the second layer.
pub fn relu_at_the_end(group: &ProcessGroup, x: &Tensor, first: &Weight, second: &Weight) -> Result<Tensor> {
    let (_, rank, _, part) = parts(group, x, first);
    let hidden = x.matmul(&first.rows(rank * part, part).tr());
    Ok(summed(group, hidden.matmul(&second.columns(rank * part, part).tr()))?.relu())
}

/// Sums the outputs of the first layer, although no rank needs another's part.
pub fn sums_between(group: &ProcessGroup, x: &Tensor, first: &Weight, second: &Weight) -> Result<Tensor> {
    let (_, rank, _, part) = parts(group, x, first);
    let hidden = Tensor::zeros([x.size()[0], first.size()[0]], (x.kind(), x.device()));
    hidden.narrow(1, rank * part, part).copy_(&x.matmul(&first.rows(rank * part, part).tr()).relu());
    let mine = summed(group, hidden)?.narrow(1, rank * part, part);
    summed(group, mine.matmul(&second.columns(rank * part, part).tr()))
}

/// Takes f/p outputs of the first layer.
pub fn parts_of_f(group: &ProcessGroup, x: &Tensor, first: &Weight, second: &Weight) -> Result<Tensor> {
    let (_, rank, part, _) = parts(group, x, first);
    let hidden = x.matmul(&first.rows(rank * part, part).tr()).relu();
    summed(group, hidden.matmul(&second.columns(rank * part, part).tr()))
}

/// Reduces to rank 0.
pub fn on_rank_0(group: &ProcessGroup, x: &Tensor, first: &Weight, second: &Weight) -> Result<Tensor> {
    let (_, rank, _, part) = parts(group, x, first);
    let hidden = x.matmul(&first.rows(rank * part, part).tr()).relu();
    let mut y = hidden.matmul(&second.columns(rank * part, part).tr());
    group.reduce(&mut y, c10d::Rank::ZERO, ReduceOp::Sum)?;
    Ok(y)
}

/// Applies the ReLU to the partial sums of y.
pub fn relu_of_summands(group: &ProcessGroup, x: &Tensor, first: &Weight, second: &Weight) -> Result<Tensor> {
    let (_, rank, _, part) = parts(group, x, first);
    let hidden = x.matmul(&first.rows(rank * part, part).tr());
    summed(group, hidden.matmul(&second.columns(rank * part, part).tr()).relu())
}

/// Right: the parts in the ranks' reverse order.
pub fn mirrored(group: &ProcessGroup, x: &Tensor, first: &Weight, second: &Weight) -> Result<Tensor> {
    let (ranks, rank, _, part) = parts(group, x, first);
    let from = (ranks - 1 - rank) * part;
    let hidden = x.matmul(&first.rows(from, part).tr()).relu();
    summed(group, hidden.matmul(&second.columns(from, part).tr()))
}

/// Right: every p-th output of the first layer.
pub fn interleaved(group: &ProcessGroup, x: &Tensor, first: &Weight, second: &Weight) -> Result<Tensor> {
    let (ranks, rank, _, part) = parts(group, x, first);
    let places: Vec<i64> = (0..part).map(|turn| turn * ranks + rank).collect();
    let rows: Vec<Tensor> = places.iter().map(|place| first.rows(*place, 1)).collect();
    let columns: Vec<Tensor> = places.iter().map(|place| second.columns(*place, 1)).collect();
    let hidden = x.matmul(&Tensor::cat(&rows, 0).tr()).relu();
    summed(group, hidden.matmul(&Tensor::cat(&columns, 1).tr()))
}
