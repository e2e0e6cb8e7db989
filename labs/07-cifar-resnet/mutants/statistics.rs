//! Other answers to `statistics`: wrong ones, and right ones that look unusual.

use c10d::{ProcessGroup, Rank, ReduceOp};
use tch::{Kind, Tensor};

/// Each rank over its own batch: batch norm as DDP leaves it.
pub fn own(_: &ProcessGroup, batch: &Tensor) -> anyhow::Result<(Tensor, Tensor)> {
    Ok((batch.mean_dim(0, false, Kind::Double), batch.var_dim(0, false, false)))
}

/// Rank 0's, broadcast, as DDP does with buffers.
pub fn of_rank_0(group: &ProcessGroup, batch: &Tensor) -> anyhow::Result<(Tensor, Tensor)> {
    let (mut mean, mut variance) = (batch.mean_dim(0, false, Kind::Double), batch.var_dim(0, false, false));
    group.broadcast(&mut mean, Rank::ZERO)?;
    group.broadcast(&mut variance, Rank::ZERO)?;
    Ok((mean, variance))
}

/// The mean of the ranks' means and of their variances.
pub fn means(group: &ProcessGroup, batch: &Tensor) -> anyhow::Result<(Tensor, Tensor)> {
    let (mut mean, mut variance) = (batch.mean_dim(0, false, Kind::Double), batch.var_dim(0, false, false));
    group.all_reduce(&mut mean, ReduceOp::Sum)?;
    group.all_reduce(&mut variance, ReduceOp::Sum)?;
    let ranks = group.size().get() as i64;
    Ok((mean / ranks, variance / ranks))
}

/// The mean is right; the variance is the mean of the ranks' variances, weighted, without that of their means.
pub fn within(group: &ProcessGroup, batch: &Tensor) -> anyhow::Result<(Tensor, Tensor)> {
    let mut count = Tensor::from_slice(&[batch.size()[0] as f64]);
    let mut mean = batch.mean_dim(0, false, Kind::Double) * &count;
    let mut variance = batch.var_dim(0, false, false) * &count;
    for sum in [&mut count, &mut mean, &mut variance] {
        group.all_reduce(sum, ReduceOp::Sum)?;
    }
    Ok((mean / &count, variance / &count))
}

/// Divides by n - 1.
pub fn unbiased(group: &ProcessGroup, batch: &Tensor) -> anyhow::Result<(Tensor, Tensor)> {
    let mut count = Tensor::from_slice(&[batch.size()[0] as f64]);
    let mut mean = batch.sum_dim_intlist(0, false, Kind::Double);
    group.all_reduce(&mut count, ReduceOp::Sum)?;
    group.all_reduce(&mut mean, ReduceOp::Sum)?;
    mean = mean / &count;
    let mut variance = (batch - &mean).square().sum_dim_intlist(0, false, Kind::Double);
    group.all_reduce(&mut variance, ReduceOp::Sum)?;
    Ok((mean, variance / (count - 1)))
}

/// Right, and more exact: first the mean, then the squares of the distances from it.
pub fn two_passes(group: &ProcessGroup, batch: &Tensor) -> anyhow::Result<(Tensor, Tensor)> {
    let mut count = Tensor::from_slice(&[batch.size()[0] as f64]);
    let mut mean = batch.sum_dim_intlist(0, false, Kind::Double);
    group.all_reduce(&mut count, ReduceOp::Sum)?;
    group.all_reduce(&mut mean, ReduceOp::Sum)?;
    mean = mean / &count;
    let mut variance = (batch - &mean).square().sum_dim_intlist(0, false, Kind::Double);
    group.all_reduce(&mut variance, ReduceOp::Sum)?;
    Ok((mean, variance / count))
}
