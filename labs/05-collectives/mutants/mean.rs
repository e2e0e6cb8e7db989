//! Other answers to `mean`: wrong ones, and right ones that look unusual.

use anyhow::Result;
use c10d::{ProcessGroup, Rank, ReduceOp};
use tch::{Kind, Tensor};

/// Every rank counts the same, however few samples it has.
pub fn of_means(group: &ProcessGroup, losses: &Tensor) -> Result<f64> {
    let own = if losses.numel() == 0 { 0.0 } else { losses.mean(Kind::Double).double_value(&[]) };
    let mut sum = Tensor::from_slice(&[own]);
    group.all_reduce(&mut sum, ReduceOp::Sum)?;
    Ok(sum.double_value(&[0]) / group.size().get() as f64)
}

/// The sum over all ranks is divided by the rank's own number of samples.
pub fn own_count(group: &ProcessGroup, losses: &Tensor) -> Result<f64> {
    let mut sum = losses.sum(Kind::Double);
    group.all_reduce(&mut sum, ReduceOp::Sum)?;
    Ok(sum.double_value(&[]) / losses.numel() as f64)
}

/// Only rank 0 gets the sums.
pub fn on_rank_0(group: &ProcessGroup, losses: &Tensor) -> Result<f64> {
    let count = Tensor::from(losses.numel() as f64);
    let mut totals = Tensor::stack(&[losses.sum(Kind::Double), count], 0);
    group.reduce(&mut totals, Rank::ZERO, ReduceOp::Sum)?;
    Ok(totals.double_value(&[0]) / totals.double_value(&[1]))
}

/// A rank without samples thinks that it has no part in it.
pub fn skips(group: &ProcessGroup, losses: &Tensor) -> Result<f64> {
    if losses.numel() == 0 {
        return Ok(0.0);
    }
    let count = Tensor::from(losses.numel() as f64);
    let mut totals = Tensor::stack(&[losses.sum(Kind::Double), count], 0);
    group.all_reduce(&mut totals, ReduceOp::Sum)?;
    Ok(totals.double_value(&[0]) / totals.double_value(&[1]))
}

/// Right: the ranks' means, each weighted by its share of the samples.
pub fn weighted(group: &ProcessGroup, losses: &Tensor) -> Result<f64> {
    let mut count = Tensor::from_slice(&[losses.numel() as f64]);
    group.all_reduce(&mut count, ReduceOp::Sum)?;
    let share = losses.numel() as f64 / count.double_value(&[0]);
    let own = if share > 0.0 { losses.mean(Kind::Double).double_value(&[]) } else { 0.0 };
    let mut mean = Tensor::from_slice(&[share * own]);
    group.all_reduce(&mut mean, ReduceOp::Sum)?;
    Ok(mean.double_value(&[0]))
}
