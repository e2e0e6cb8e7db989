//! The ranks' accuracies are averaged, whatever the length of their shares.

use c10d::{ProcessGroup, ReduceOp};
use tch::{Kind, Tensor};

pub fn accuracy(group: &ProcessGroup, batches: &[(Tensor, Tensor)]) -> anyhow::Result<f64> {
    let (mut correct, mut pictures) = (0.0, 0.0_f64);
    for (predicted, right) in batches {
        correct += predicted.eq_tensor(right).sum(Kind::Double).double_value(&[]);
        pictures += right.size()[0] as f64;
    }
    let mut mean = Tensor::from_slice(&[correct / pictures.max(1.0)]);
    group.all_reduce(&mut mean, ReduceOp::Sum)?;
    Ok(mean.double_value(&[0]) / group.size().get() as f64)
}
