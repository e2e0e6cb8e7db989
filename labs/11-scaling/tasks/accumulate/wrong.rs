//! Answers to `accumulate`: wrong ones, and an unusual right one.

use anyhow::Result;
use tch::{Reduction, Tensor};

use crate::training::Model;

type Micro = [(Tensor, Tensor)];

fn samples(micro: &Micro) -> i64 {
    micro.iter().map(|(_, targets)| targets.size()[0]).sum()
}

fn pass(model: &Model, (inputs, targets): &(Tensor, Tensor), share: f64) -> Result<()> {
    let loss = model.forward(inputs)?.mse_loss(targets, Reduction::Mean) * share;
    Ok(model.backward(&loss)?)
}

fn in_turn(model: &Model, micro: &Micro, share: impl Fn(&Tensor) -> f64) -> Result<()> {
    let (last, others) = micro.split_last().expect("there are some");
    model.no_sync(|| others.iter().try_for_each(|pair| pass(model, pair, share(&pair.1))))?;
    pass(model, last, share(&last.1))
}

/// The given program.
pub fn each_pass(model: &Model, micro: &Micro) -> Result<()> {
    micro.iter().try_for_each(|pair| pass(model, pair, 1.0))
}

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
pub fn sum_of_means(model: &Model, micro: &Micro) -> Result<()> {
    in_turn(model, micro, |_| 1.0)
}

/// Gives each micro-batch the same share, whatever its size.
pub fn equal_shares(model: &Model, micro: &Micro) -> Result<()> {
    in_turn(model, micro, |_| 1.0 / micro.len() as f64)
}

/// Never exchanges gradients.
pub fn never(model: &Model, micro: &Micro) -> Result<()> {
    let samples = samples(micro) as f64;
    model.no_sync(|| micro.iter().try_for_each(|pair| pass(model, pair, pair.1.size()[0] as f64 / samples)))
}

/// Makes one large batch.
pub fn one_large(model: &Model, micro: &Micro) -> Result<()> {
    let inputs: Vec<&Tensor> = micro.iter().map(|(inputs, _)| inputs).collect();
    let targets: Vec<&Tensor> = micro.iter().map(|(_, targets)| targets).collect();
    pass(model, &(Tensor::cat(&inputs, 0), Tensor::cat(&targets, 0)), 1.0)
}

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
pub fn drops_last(model: &Model, micro: &Micro) -> Result<()> {
    let micro = &micro[..micro.len() - 1];
    let samples = samples(micro) as f64;
    in_turn(model, micro, |targets| targets.size()[0] as f64 / samples)
}

/// Divides by the samples of all ranks.
pub fn divides_by_ranks(model: &Model, micro: &Micro) -> Result<()> {
    let samples = samples(micro) as f64 * model.group().size().get() as f64;
    in_turn(model, micro, |targets| targets.size()[0] as f64 / samples)
}

/// Counts each micro-batch with the length of the first.
pub fn length_of_first(model: &Model, micro: &Micro) -> Result<()> {
    let samples = (micro[0].1.size()[0] * micro.len() as i64) as f64;
    in_turn(model, micro, |targets| targets.size()[0] as f64 / samples)
}

/// Takes the first micro-batch again, so that the last pass exchanges.
pub fn first_again(model: &Model, micro: &Micro) -> Result<()> {
    let samples = samples(micro) as f64;
    model.no_sync(|| micro.iter().try_for_each(|pair| pass(model, pair, pair.1.size()[0] as f64 / samples)))?;
    pass(model, &micro[0], 1.0)
}

/// Right: sums instead of means, divided by all samples.
pub fn sums(model: &Model, micro: &Micro) -> Result<()> {
    let samples = samples(micro) as f64;
    let pass = |(inputs, targets): &(Tensor, Tensor)| -> Result<()> {
        let error = model.forward(inputs)? - targets;
        Ok(model.backward(&((&error * &error).sum(tch::Kind::Double) / samples))?)
    };
    let (last, others) = micro.split_last().expect("there are some");
    model.no_sync(|| others.iter().try_for_each(pass))?;
    pass(last)
}

/// Exchanges in the first pass, not in the last.
pub fn first_exchanges(model: &Model, micro: &Micro) -> Result<()> {
    let (first, others) = micro.split_first().expect("there are some");
    let share = |targets: &Tensor| targets.size()[0] as f64 / samples(micro) as f64;
    pass(model, first, share(&first.1))?;
    model.no_sync(|| others.iter().try_for_each(|pair| pass(model, pair, share(&pair.1))))
}
