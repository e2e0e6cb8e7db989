//! Divides by n - 1.

use c10d::{ProcessGroup, ReduceOp};
use tch::{Kind, Tensor};

pub fn statistics(group: &ProcessGroup, batch: &Tensor) -> anyhow::Result<(Tensor, Tensor)> {
    let mut count = Tensor::from_slice(&[batch.size()[0] as f64]);
    let mut mean = batch.sum_dim_intlist(0, false, Kind::Double);
    group.all_reduce(&mut count, ReduceOp::Sum)?;
    group.all_reduce(&mut mean, ReduceOp::Sum)?;
    mean = mean / &count;
    let mut variance = (batch - &mean).square().sum_dim_intlist(0, false, Kind::Double);
    group.all_reduce(&mut variance, ReduceOp::Sum)?;
    Ok((mean, variance / (count - 1)))
}
