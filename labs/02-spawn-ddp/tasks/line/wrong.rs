//! Answers to `line`: wrong ones, and unusual right ones.

use anyhow::Result;
use c10d::{ProcessGroup, ReduceOp};
use lockstep_answers::{edit, given};
use tch::{Device, Kind, Tensor};

use crate::line::gradient;

/// The given program: runs the program for one process on every rank, so each fits its own line.
#[given]
pub fn serial() {}

/// Uses the batch size for each rank.
#[edit((batch_size / ranks) as i64 => batch_size as i64)]
pub fn large() {}

/// Adds up the gradients but does not divide the sum.
#[edit(sum * (rate / ranks as f64) => sum * rate)]
pub fn summed() {}

/// Trains alone on every rank and averages the lines once, at the end.
#[edit(let mut sum = gradient(&line, x, y); group.all_reduce(&mut sum, ReduceOp::Sum)?; line -= sum * (rate / ranks as f64); =>
    line -= gradient(&line, x, y) * rate;
)]
#[edit(Ok(line) => group.all_reduce(&mut line, ReduceOp::Sum)?; Ok(line / ranks as f64))]
pub fn at_the_end() {}

/// Right: each rank takes its own step, and the lines are averaged after each step. Without momentum this is equivalent.
#[edit(let mut sum = gradient(&line, x, y); group.all_reduce(&mut sum, ReduceOp::Sum)?; line -= sum * (rate / ranks as f64); =>
    line -= gradient(&line, x, y) * rate;
    group.all_reduce(&mut line, ReduceOp::Sum)?;
    let _ = line.g_div_scalar_(ranks as i64);
)]
pub fn weights() {}

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
#[edit(let mut sum = gradient(&line, x, y); =>
    let (mut sum, mut count) = (gradient(&line, x, y) * x.numel() as f64, Tensor::from(x.numel() as f64));
    group.all_reduce(&mut count, ReduceOp::Sum)?;
)]
#[edit(sum * (rate / ranks as f64) => sum / count * rate)]
pub fn with_counts() {}

/// Divides the last batch's sum by the batch size.
#[edit(let mut sum = gradient(&line, x, y) => let mut sum = gradient(&line, x, y) * x.size()[0] as f64)]
#[edit(rate / ranks as f64 => rate / batch_size as f64)]
pub fn full_batches() {}
