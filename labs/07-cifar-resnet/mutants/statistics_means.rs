//! The mean of the ranks' means and of their variances.

use c10d::{ProcessGroup, ReduceOp};
use tch::{Kind, Tensor};

pub fn statistics(group: &ProcessGroup, batch: &Tensor) -> anyhow::Result<(Tensor, Tensor)> {
    let (mut mean, mut variance) = (batch.mean_dim(0, false, Kind::Double), batch.var_dim(0, false, false));
    group.all_reduce(&mut mean, ReduceOp::Sum)?;
    group.all_reduce(&mut variance, ReduceOp::Sum)?;
    let ranks = group.size().get() as i64;
    Ok((mean / ranks, variance / ranks))
}
