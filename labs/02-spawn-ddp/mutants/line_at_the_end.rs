//! Every rank trains alone; the lines are averaged once, at the end.

use c10d::{ProcessGroup, ReduceOp};
use tch::{Device, Kind, Tensor};

use crate::line::gradient;

pub fn line(group: &ProcessGroup, x: &Tensor, y: &Tensor, batch_size: usize, rate: f64) -> anyhow::Result<Tensor> {
    let mut line = Tensor::zeros([2], (Kind::Double, Device::Cpu));
    let ranks = group.size().get();
    let batch = (batch_size / ranks) as i64;
    for (x, y) in x.split(batch, 0).iter().zip(&y.split(batch, 0)) {
        line -= gradient(&line, x, y) * rate;
    }
    group.all_reduce(&mut line, ReduceOp::Sum)?;
    Ok(line / ranks as f64)
}
