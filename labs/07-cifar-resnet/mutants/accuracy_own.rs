//! Each rank's own, over its pictures.

use c10d::ProcessGroup;
use tch::{Kind, Tensor};

pub fn accuracy(_: &ProcessGroup, batches: &[(Tensor, Tensor)]) -> anyhow::Result<f64> {
    let (mut correct, mut pictures) = (0.0, 0.0);
    for (predicted, right) in batches {
        correct += predicted.eq_tensor(right).sum(Kind::Double).double_value(&[]);
        pictures += right.size()[0] as f64;
    }
    Ok(if pictures > 0.0 { correct / pictures } else { 0.0 })
}
