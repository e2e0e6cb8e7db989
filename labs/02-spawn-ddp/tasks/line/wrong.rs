//! Answers to `line`: wrong ones, and unusual right ones.

use c10d::{ProcessGroup, ReduceOp};
use tch::{Device, Kind, Tensor};

use crate::line::gradient;

/// The given program: runs the program for one process on every rank, so each fits its own line.
pub fn serial(_: &ProcessGroup, x: &Tensor, y: &Tensor, batch_size: usize, rate: f64) -> anyhow::Result<Tensor> {
    let mut line = Tensor::zeros([2], (Kind::Double, Device::Cpu));
    let batch = batch_size as i64;
    for (x, y) in x.split(batch, 0).iter().zip(&y.split(batch, 0)) {
        line -= gradient(&line, x, y) * rate;
    }
    Ok(line)
}

/// Uses the batch size as that of each rank.
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

/// Adds up the gradients but does not divide the sum.
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

/// Trains alone on every rank and averages the lines once, at the end.
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

/// Right: each rank takes its own step, and the lines are averaged after each step. Without momentum this is equivalent.
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

/// Gathers all points, and trains on them on every rank.
pub fn gathers(group: &ProcessGroup, x: &Tensor, y: &Tensor, batch_size: usize, rate: f64) -> anyhow::Result<Tensor> {
    let all = |own: &Tensor| -> anyhow::Result<Tensor> {
        let mut shares: Vec<Tensor> = group.size().ranks().map(|_| own.zeros_like()).collect();
        group.all_gather(&mut shares, own)?;
        Ok(Tensor::stack(&shares, 1).flatten(0, -1))
    };
    let mut line = Tensor::zeros([2], (Kind::Double, Device::Cpu));
    let batch = batch_size as i64;
    for (x, y) in all(x)?.split(batch, 0).iter().zip(&all(y)?.split(batch, 0)) {
        line -= gradient(&line, x, y) * rate;
    }
    Ok(line)
}

/// Right: adds up the batch's gradients and lengths, and divides once.
pub fn with_counts(
    group: &ProcessGroup,
    x: &Tensor,
    y: &Tensor,
    batch_size: usize,
    rate: f64,
) -> anyhow::Result<Tensor> {
    let mut line = Tensor::zeros([2], (Kind::Double, Device::Cpu));
    let batch = (batch_size / group.size().get()) as i64;
    for (x, y) in x.split(batch, 0).iter().zip(&y.split(batch, 0)) {
        let (mut sum, mut count) = (gradient(&line, x, y) * x.numel() as f64, Tensor::from(x.numel() as f64));
        group.all_reduce(&mut sum, ReduceOp::Sum)?;
        group.all_reduce(&mut count, ReduceOp::Sum)?;
        line -= sum / count * rate;
    }
    Ok(line)
}

/// Divides the last batch's sum by the batch size.
pub fn full_batches(
    group: &ProcessGroup,
    x: &Tensor,
    y: &Tensor,
    batch_size: usize,
    rate: f64,
) -> anyhow::Result<Tensor> {
    let mut line = Tensor::zeros([2], (Kind::Double, Device::Cpu));
    let size = group.size().get() as i64;
    let batch = batch_size as i64 / size;
    for (x, y) in x.split(batch, 0).iter().zip(&y.split(batch, 0)) {
        // The sum over this rank's points, as part of the mean over the batch.
        let mut sum = gradient(&line, x, y) * x.size()[0] as f64;
        group.all_reduce(&mut sum, ReduceOp::Sum)?;
        line -= sum * (rate / batch_size as f64);
    }
    Ok(line)
}
