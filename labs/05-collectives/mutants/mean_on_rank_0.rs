//! Only rank 0 gets the sums.

use anyhow::Result;
use c10d::{ProcessGroup, Rank, ReduceOp};
use tch::{Kind, Tensor};

pub fn mean(group: &ProcessGroup, losses: &Tensor) -> Result<f64> {
    let count = Tensor::from(losses.numel() as f64);
    let mut totals = Tensor::stack(&[losses.sum(Kind::Double), count], 0);
    group.reduce(&mut totals, Rank::ZERO, ReduceOp::Sum)?;
    Ok(totals.double_value(&[0]) / totals.double_value(&[1]))
}
