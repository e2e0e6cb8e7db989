//! Summed on rank 0 alone; the others return what their buffer holds after that.

use c10d::{ProcessGroup, Rank, ReduceOp};
use tch::{Kind, Tensor};

pub fn accuracy(group: &ProcessGroup, batches: &[(Tensor, Tensor)]) -> anyhow::Result<f64> {
    let (mut correct, mut pictures) = (0.0, 0.0);
    for (predicted, right) in batches {
        correct += predicted.eq_tensor(right).sum(Kind::Double).double_value(&[]);
        pictures += right.size()[0] as f64;
    }
    let mut sums = Tensor::from_slice(&[correct, pictures]);
    group.reduce(&mut sums, Rank::ZERO, ReduceOp::Sum)?;
    Ok(if group.rank().is_zero() { sums.double_value(&[0]) / sums.double_value(&[1]) } else { 0.0 })
}
