//! Right: the ranks' means, each weighted by its share of the samples.

use anyhow::Result;
use c10d::{ProcessGroup, ReduceOp};
use tch::{Kind, Tensor};

pub fn mean(group: &ProcessGroup, losses: &Tensor) -> Result<f64> {
    let mut count = Tensor::from_slice(&[losses.numel() as f64]);
    group.all_reduce(&mut count, ReduceOp::Sum)?;
    let share = losses.numel() as f64 / count.double_value(&[0]);
    let own = if share > 0.0 { losses.mean(Kind::Double).double_value(&[]) } else { 0.0 };
    let mut mean = Tensor::from_slice(&[share * own]);
    group.all_reduce(&mut mean, ReduceOp::Sum)?;
    Ok(mean.double_value(&[0]))
}
