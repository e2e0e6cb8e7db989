//! Answers to `accumulate`: wrong ones, and an unusual right one.

use anyhow::Result;
use lockstep_answers::{edit, given};
use tch::{Reduction, Tensor};

use crate::training::Model;

type Micro = [(Tensor, Tensor)];

fn samples(micro: &Micro) -> i64 {
    micro.iter().map(|(_, targets)| targets.size()[0]).sum()
}

/// The given program.
#[given]
pub fn each_pass() {}

/// Has the right shares, but only the backward passes in `no_sync`.
pub fn forward_outside(model: &Model, micro: &Micro) -> Result<()> {
    let samples = samples(micro) as f64;
    for (number, (inputs, targets)) in micro.iter().enumerate() {
        let share = targets.size()[0] as f64 / samples;
        let loss = model.forward(inputs)?.mse_loss(targets, Reduction::Mean) * share;
        if number + 1 < micro.len() { model.no_sync(|| model.backward(&loss))? } else { model.backward(&loss)? }
    }
    Ok(())
}

/// Adds up the means of all micro-batches.
#[edit(mse_loss(targets, Reduction::Mean) * share => mse_loss(targets, Reduction::Mean))]
pub fn sum_of_means() {}

/// Gives each micro-batch the same share, whatever its size.
#[edit(targets.size()[0] as f64 / samples as f64 => 1.0 / micro.len() as f64)]
pub fn equal_shares() {}

/// Never exchanges gradients.
#[edit(model.no_sync(|| others.iter().try_for_each(pass))?; pass(last) => model.no_sync(|| micro.iter().try_for_each(pass)))]
pub fn never() {}

/// Makes one large batch.
#[edit(let samples =>
    let (inputs, targets): (Vec<&Tensor>, Vec<&Tensor>) = micro.iter().map(|(inputs, targets)| (inputs, targets)).unzip();
    let micro = &[(Tensor::cat(&inputs, 0), Tensor::cat(&targets, 0))];
    let samples
)]
pub fn one_large() {}

/// Keeps the losses of all micro-batches for one backward pass.
pub fn one_backward(model: &Model, micro: &Micro) -> Result<()> {
    let samples = samples(micro) as f64;
    let loss = |(inputs, targets): &(Tensor, Tensor)| -> Result<Tensor> {
        let share = targets.size()[0] as f64 / samples;
        Ok(model.forward(inputs)?.mse_loss(targets, Reduction::Mean) * share)
    };
    let (last, others) = micro.split_last().expect("there are some");
    let losses: Vec<Tensor> = model.no_sync(|| others.iter().map(loss).collect::<Result<_>>())?;
    let last = loss(last)?;
    Ok(model.backward(&losses.iter().fold(last, |sum, loss| sum + loss))?)
}

/// Leaves out the last micro-batch, which is smaller.
#[edit(let samples => let micro = &micro[..micro.len() - 1]; let samples)]
pub fn drops_last() {}

/// Divides by the samples of all ranks.
#[edit(samples as f64 => samples as f64 / model.group().size().get() as f64)]
pub fn divides_by_ranks() {}

/// Counts each micro-batch with the length of the first.
#[edit(micro.iter().map(|(_, targets)| targets.size()[0]).sum() => micro[0].1.size()[0] * micro.len() as i64)]
pub fn length_of_first() {}

/// Takes the first micro-batch again, so that the last pass exchanges.
#[edit(model.no_sync(|| others.iter().try_for_each(pass))?; pass(last) =>
    model.no_sync(|| micro.iter().try_for_each(pass))?;
    Ok(model.backward(&model.forward(&micro[0].0)?.mse_loss(&micro[0].1, Reduction::Mean))?)
)]
pub fn first_again() {}

/// Right: sums instead of means, divided by all samples.
#[edit(model.forward(inputs)?.mse_loss(targets, Reduction::Mean) * share => (model.forward(inputs)? - targets).square().sum(tch::Kind::Double) / samples as f64)]
pub fn sums() {}

/// Exchanges in the first pass, not in the last.
#[edit(micro.split_last() => micro.split_first())]
#[edit(model.no_sync(|| others.iter().try_for_each(pass))?; pass(last) => pass(last)?; model.no_sync(|| others.iter().try_for_each(pass)))]
pub fn first_exchanges() {}
