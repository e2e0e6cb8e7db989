//! Answers to `statistics`: wrong ones, and unusual right ones.

use c10d::{ProcessGroup, Rank, ReduceOp};
use tch::{Kind, Tensor};

/// Uses each rank's own batch, as batch norm under DDP does.
pub fn own(_: &ProcessGroup, batch: &Tensor) -> anyhow::Result<(Tensor, Tensor)> {
    Ok((batch.mean_dim(0, false, Kind::Double), batch.var_dim(0, false, false)))
}

/// Broadcasts rank 0's values, as DDP does with buffers.
pub fn of_rank_0(group: &ProcessGroup, batch: &Tensor) -> anyhow::Result<(Tensor, Tensor)> {
    let (mut mean, mut variance) = (batch.mean_dim(0, false, Kind::Double), batch.var_dim(0, false, false));
    group.broadcast(&mut mean, Rank::ZERO)?;
    group.broadcast(&mut variance, Rank::ZERO)?;
    Ok((mean, variance))
}

/// Averages the ranks' means and variances.
pub fn means(group: &ProcessGroup, batch: &Tensor) -> anyhow::Result<(Tensor, Tensor)> {
    let (mut mean, mut variance) = (batch.mean_dim(0, false, Kind::Double), batch.var_dim(0, false, false));
    group.all_reduce(&mut mean, ReduceOp::Sum)?;
    group.all_reduce(&mut variance, ReduceOp::Sum)?;
    let ranks = group.size().get() as i64;
    Ok((mean / ranks, variance / ranks))
}

/// Gets the mean right but ignores the variance between the ranks' means.
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

/// Adds the sums over the ranks, but not the lengths.
pub fn own_length(group: &ProcessGroup, batch: &Tensor) -> anyhow::Result<(Tensor, Tensor)> {
    let sum = batch.sum_dim_intlist(0, false, Kind::Double);
    let squares = batch.square().sum_dim_intlist(0, false, Kind::Double);
    let mut both = Tensor::stack(&[sum, squares], 0);
    group.all_reduce(&mut both, ReduceOp::Sum)?;
    let both = both / (batch.size()[0] as f64 * group.size().get() as f64);
    let mean = both.get(0);
    let variance = both.get(1) - mean.square();
    Ok((mean, variance))
}

/// Adds the ranks' means and variances up.
pub fn added(group: &ProcessGroup, batch: &Tensor) -> anyhow::Result<(Tensor, Tensor)> {
    let (mut mean, mut variance) = (batch.mean_dim(0, false, Kind::Double), batch.var_dim(0, false, false));
    group.all_reduce(&mut mean, ReduceOp::Sum)?;
    group.all_reduce(&mut variance, ReduceOp::Sum)?;
    Ok((mean, variance))
}

/// Takes the distances from the common mean over each rank's own samples.
pub fn own_distances(group: &ProcessGroup, batch: &Tensor) -> anyhow::Result<(Tensor, Tensor)> {
    let mut count = Tensor::from_slice(&[batch.size()[0] as f64]);
    let mut mean = batch.sum_dim_intlist(0, false, Kind::Double);
    group.all_reduce(&mut count, ReduceOp::Sum)?;
    group.all_reduce(&mut mean, ReduceOp::Sum)?;
    mean = mean / &count;
    let variance = (batch - &mean).square().mean_dim(0, false, Kind::Double);
    Ok((mean, variance))
}

/// Forgets to subtract the square of the mean.
pub fn of_squares(group: &ProcessGroup, batch: &Tensor) -> anyhow::Result<(Tensor, Tensor)> {
    let count = Tensor::from_slice(&[batch.size()[0] as f64]);
    let sum = batch.sum_dim_intlist(0, false, Kind::Double);
    let squares = batch.square().sum_dim_intlist(0, false, Kind::Double);
    let mut all = Tensor::cat(&[count, sum, squares], 0);
    group.all_reduce(&mut all, ReduceOp::Sum)?;
    let channels = batch.size()[1];
    let parts = (&all / all.get(0)).split_with_sizes([1, channels, channels], 0);
    Ok((parts[1].shallow_clone(), parts[2].shallow_clone()))
}

/// Returns the standard deviation.
pub fn deviation(group: &ProcessGroup, batch: &Tensor) -> anyhow::Result<(Tensor, Tensor)> {
    let count = Tensor::from_slice(&[batch.size()[0] as f64]);
    let sum = batch.sum_dim_intlist(0, false, Kind::Double);
    let squares = batch.square().sum_dim_intlist(0, false, Kind::Double);
    let mut all = Tensor::cat(&[count, sum, squares], 0);
    group.all_reduce(&mut all, ReduceOp::Sum)?;
    let channels = batch.size()[1];
    let parts = (&all / all.get(0)).split_with_sizes([1, channels, channels], 0);
    let variance = &parts[2] - parts[1].square();
    Ok((parts[1].shallow_clone(), variance.sqrt()))
}

/// Subtracts the square of its own mean.
pub fn own_square(group: &ProcessGroup, batch: &Tensor) -> anyhow::Result<(Tensor, Tensor)> {
    let (mean, squares) = of_squares(group, batch)?;
    Ok((mean, squares - batch.mean_dim(0, false, Kind::Double).square()))
}

/// Right: more precise, first the mean, then the squared distances from it.
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

/// Right: one all-gather of each rank's count, mean and variance, combined as Chan, Golub and LeVeque do.
pub fn gathers(group: &ProcessGroup, batch: &Tensor) -> anyhow::Result<(Tensor, Tensor)> {
    let (mean, variance) = (batch.mean_dim(0, false, Kind::Double), batch.var_dim(0, false, false));
    let count = mean.ones_like() * batch.size()[0];
    let own = Tensor::stack(&[count, mean, variance], 0);
    let mut all: Vec<Tensor> = group.members().iter().map(|_| own.zeros_like()).collect();
    group.all_gather(&mut all, &own)?;
    let (mut count, mut mean, mut squares) =
        (own.get(0).zeros_like(), own.get(0).zeros_like(), own.get(0).zeros_like());
    for of_rank in &all {
        let (more, other) = (of_rank.get(0), of_rank.get(1));
        let (sum, distance) = (&count + &more, other - &mean);
        squares = squares + of_rank.get(2) * &more + distance.square() * &count * &more / &sum;
        mean = mean + distance * &more / &sum;
        count = sum;
    }
    Ok((mean, squares / count))
}
