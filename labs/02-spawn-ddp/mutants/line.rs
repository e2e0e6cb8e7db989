//! Other answers to `line`: wrong ones, and right ones that look unusual.

use c10d::{ProcessGroup, ReduceOp};
use tch::{Device, Kind, Tensor};

use crate::line::gradient;

/// The program for one process, on every rank: each fits a line of its own.
pub fn serial(_: &ProcessGroup, x: &Tensor, y: &Tensor, batch_size: usize, rate: f64) -> anyhow::Result<Tensor> {
    let mut line = Tensor::zeros([2], (Kind::Double, Device::Cpu));
    let batch = batch_size as i64;
    for (x, y) in x.split(batch, 0).iter().zip(&y.split(batch, 0)) {
        line -= gradient(&line, x, y) * rate;
    }
    Ok(line)
}

/// Takes the batch size for that of each rank.
pub fn large(group: &ProcessGroup, x: &Tensor, y: &Tensor, batch_size: usize, rate: f64) -> anyhow::Result<Tensor> {
    let mut line = Tensor::zeros([2], (Kind::Double, Device::Cpu));
    let batch = batch_size as i64;
    for (x, y) in x.split(batch, 0).iter().zip(&y.split(batch, 0)) {
        let mut sum = gradient(&line, x, y);
        group.all_reduce(&mut sum, ReduceOp::Sum)?;
        line -= sum * (rate / group.size().get() as f64);
    }
    Ok(line)
}

/// The gradients are added up, and the sum is not divided.
pub fn summed(group: &ProcessGroup, x: &Tensor, y: &Tensor, batch_size: usize, rate: f64) -> anyhow::Result<Tensor> {
    let mut line = Tensor::zeros([2], (Kind::Double, Device::Cpu));
    let batch = (batch_size / group.size().get()) as i64;
    for (x, y) in x.split(batch, 0).iter().zip(&y.split(batch, 0)) {
        let mut sum = gradient(&line, x, y);
        group.all_reduce(&mut sum, ReduceOp::Sum)?;
        line -= sum * rate;
    }
    Ok(line)
}

/// Every rank trains alone; the lines are averaged once, at the end.
pub fn at_the_end(
    group: &ProcessGroup,
    x: &Tensor,
    y: &Tensor,
    batch_size: usize,
    rate: f64,
) -> anyhow::Result<Tensor> {
    let mut line = Tensor::zeros([2], (Kind::Double, Device::Cpu));
    let ranks = group.size().get();
    let batch = (batch_size / ranks) as i64;
    for (x, y) in x.split(batch, 0).iter().zip(&y.split(batch, 0)) {
        line -= gradient(&line, x, y) * rate;
    }
    group.all_reduce(&mut line, ReduceOp::Sum)?;
    Ok(line / ranks as f64)
}

/// Right, in its own way: each rank takes its own step, and the lines are averaged after each. Without momentum that is the same.
pub fn weights(group: &ProcessGroup, x: &Tensor, y: &Tensor, batch_size: usize, rate: f64) -> anyhow::Result<Tensor> {
    let mut line = Tensor::zeros([2], (Kind::Double, Device::Cpu));
    let ranks = group.size().get();
    let batch = (batch_size / ranks) as i64;
    for (x, y) in x.split(batch, 0).iter().zip(&y.split(batch, 0)) {
        line -= gradient(&line, x, y) * rate;
        group.all_reduce(&mut line, ReduceOp::Sum)?;
        let _ = line.g_div_scalar_(ranks as i64);
    }
    Ok(line)
}
