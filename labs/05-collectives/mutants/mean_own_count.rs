//! The sum over all ranks is divided by the rank's own number of samples.

use anyhow::Result;
use c10d::{ProcessGroup, ReduceOp};
use tch::{Kind, Tensor};

pub fn mean(group: &ProcessGroup, losses: &Tensor) -> Result<f64> {
    let mut sum = losses.sum(Kind::Double);
    group.all_reduce(&mut sum, ReduceOp::Sum)?;
    Ok(sum.double_value(&[]) / losses.numel() as f64)
}
