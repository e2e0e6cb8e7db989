//! Answers to `column_row`: wrong ones, and unusual right ones.

use anyhow::Result;
use c10d::{ProcessGroup, ReduceOp};
use lockstep_answers::{edit, given};
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

/// The given program: row-wise, then column-wise.
#[given]
pub fn row_column() {}

/// Applies the ReLU to the partial sums of a row-wise layer.
#[edit(inner / ranks => features / ranks)]
#[edit(x.matmul(&first.rows(rank * part, part).tr()) => x.narrow(1, rank * part, part).matmul(&first.columns(rank * part, part).tr()))]
#[edit(second.columns(rank * part, part) => second.rows(0, features))]
pub fn relu_of_parts() {}

/// Leaves out the all-reduce.
#[edit(group.all_reduce(&mut sum, ReduceOp::Sum)?; => )]
pub fn no_sum() {}

/// Gathers the outputs of the first layer, for a second layer that is divided by rows.
pub fn gathers_between(group: &ProcessGroup, x: &Tensor, first: &Weight, second: &Weight) -> Result<Tensor> {
    let (_, rank, rows, part) = parts(group, x, first);
    let hidden = gathered(group, &x.matmul(&first.rows(rank * part, part).tr()).relu())?;
    gathered(group, &hidden.matmul(&second.rows(rank * rows, rows).tr()))
}

/// Takes both weights whole.
#[edit(first.rows(rank * part, part) => first.rows(0, inner))]
#[edit(second.columns(rank * part, part) => second.rows(0, features))]
#[edit(group.all_reduce(&mut sum, ReduceOp::Sum)?; => )]
pub fn takes_all() {}

/// Takes the next rank's columns of the second weight.
#[edit(second.columns(rank * part, part) => second.columns((rank + 1) % ranks * part, part))]
pub fn other_columns() {}

/// Averages, as with gradients.
#[edit(Ok(sum) => Ok(sum / ranks))]
pub fn averages() {}

/// Applies the ReLU after the second layer.
#[edit(.relu() => )]
#[edit(Ok(sum) => Ok(sum.relu()))]
pub fn relu_at_the_end() {}

/// Sums the outputs of the first layer, although no rank needs another's part.
#[edit(let mut sum =>
    let mut all = Tensor::zeros([x.size()[0], inner], (x.kind(), x.device()));
    all.narrow(1, rank * part, part).copy_(&hidden);
    group.all_reduce(&mut all, ReduceOp::Sum)?;
    let hidden = all.narrow(1, rank * part, part);
    let mut sum
)]
pub fn sums_between() {}

/// Takes f/p outputs of the first layer.
#[edit(inner / ranks => features / ranks)]
pub fn parts_of_f() {}

/// Reduces to rank 0.
#[edit(group.all_reduce(&mut sum, ReduceOp::Sum) => group.reduce(&mut sum, c10d::Rank::ZERO, ReduceOp::Sum))]
pub fn on_rank_0() {}

/// Applies the ReLU to the partial sums of y.
#[edit(.relu() => )]
#[edit(hidden.matmul(&second.columns(rank * part, part).tr()) => hidden.matmul(&second.columns(rank * part, part).tr()).relu())]
pub fn relu_of_summands() {}

/// Right: the parts in the ranks' reverse order.
#[edit(let part => let rank = ranks - 1 - rank; let part)]
pub fn mirrored() {}

/// Right: every p-th output of the first layer.
#[edit(first.rows(rank * part, part) => Tensor::cat(&(0..part).map(|turn| first.rows(turn * ranks + rank, 1)).collect::<Vec<_>>(), 0))]
#[edit(second.columns(rank * part, part) => Tensor::cat(&(0..part).map(|turn| second.columns(turn * ranks + rank, 1)).collect::<Vec<_>>(), 1))]
pub fn interleaved() {}
