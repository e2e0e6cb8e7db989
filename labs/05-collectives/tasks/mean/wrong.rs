//! Answers to `mean`: wrong ones, and unusual right ones.

use anyhow::Result;
use c10d::{ProcessGroup, Rank, ReduceOp};
use lockstep_answers::edit;
use tch::{Kind, Tensor};

/// Sends rank 0's sums to all ranks.
#[edit(group.all_reduce(&mut totals, ReduceOp::Sum)?; => group.broadcast(&mut totals, Rank::ZERO)?;)]
pub fn of_rank_0() {}

/// Takes the mean of the ranks' means.
#[edit(losses.sum(Kind::Double) => if losses.numel() == 0 { Tensor::from(0.0) } else { losses.mean(Kind::Double) })]
#[edit(losses.numel() as f64 => 1.0)]
pub fn of_means() {}

/// Divides the sum over all ranks by the rank's own number of samples.
#[edit(totals.double_value(&[1]) => losses.numel() as f64)]
pub fn own_count() {}

/// Reduces to rank 0 only.
#[edit(all_reduce => reduce)]
#[edit(, ReduceOp::Sum => , Rank::ZERO, ReduceOp::Sum)]
pub fn on_rank_0() {}

/// Returns early on a rank without samples.
#[edit(let count => if losses.numel() == 0 { return Ok(0.0); } let count)]
pub fn skips() {}

/// Right: weights each rank's mean by its share of the samples.
pub fn weighted(group: &ProcessGroup, losses: &Tensor) -> Result<f64> {
    let mut count = Tensor::from_slice(&[losses.numel() as f64]);
    group.all_reduce(&mut count, ReduceOp::Sum)?;
    let share = losses.numel() as f64 / count.double_value(&[0]);
    let own = if share > 0.0 { losses.mean(Kind::Double).double_value(&[]) } else { 0.0 };
    let mut mean = Tensor::from_slice(&[share * own]);
    group.all_reduce(&mut mean, ReduceOp::Sum)?;
    Ok(mean.double_value(&[0]))
}

/// Multiplies the mean by the number of samples, which is NaN without samples.
#[edit(losses.sum(Kind::Double) => losses.mean(Kind::Double) * losses.numel() as f64)]
pub fn mean_times_count() {}

/// Takes the longest shard for the length of all.
pub fn longest(group: &ProcessGroup, losses: &Tensor) -> Result<f64> {
    let mut sum = losses.sum(Kind::Double);
    let mut longest = Tensor::from(losses.numel() as i64);
    group.all_reduce(&mut sum, ReduceOp::Sum)?;
    group.all_reduce(&mut longest, ReduceOp::Max)?;
    Ok(sum.double_value(&[]) / (longest.int64_value(&[]) as f64 * group.size().get() as f64))
}

/// Takes its own shard for the length of all.
#[edit(totals.double_value(&[1]) => (losses.numel().max(1) * group.size().get()) as f64)]
pub fn as_long_as_own() {}

/// Divides by its own number of samples, and twice by the number of ranks.
#[edit(totals.double_value(&[1]) => (losses.numel() * group.size().get().pow(2)) as f64)]
pub fn own_count_and_ranks() {}
