//! The gradients are added up, and the sum is not divided.

use c10d::{ProcessGroup, ReduceOp};
use tch::{Device, Kind, Tensor};

use crate::line::gradient;

pub fn line(group: &ProcessGroup, x: &Tensor, y: &Tensor, batch_size: usize, rate: f64) -> anyhow::Result<Tensor> {
    let mut line = Tensor::zeros([2], (Kind::Double, Device::Cpu));
    let batch = (batch_size / group.size().get()) as i64;
    for (x, y) in x.split(batch, 0).iter().zip(&y.split(batch, 0)) {
        let mut sum = gradient(&line, x, y);
        group.all_reduce(&mut sum, ReduceOp::Sum)?;
        line -= sum * rate;
    }
    Ok(line)
}
