//! Answers to `learns`: wrong ones, and unusual right ones.

use anyhow::Result;
use lockstep::optim::{Optimizer, Sgd, SgdOptions, named_parameters};
use lockstep_answers::{edit, given};
use tch::nn::{Linear, Module, VarStore};
use tch::{Reduction, Tensor};

/// The given program: cross-entropy over one class.
#[given]
pub fn constant() {}

/// Computes the loss again after each step.
#[edit(losses.push(loss.double_value(&[])) => losses.push(layer.forward(inputs).mse_loss(targets, Reduction::Mean).double_value(&[])))]
pub fn after_steps() {}

/// The same, with momentum, another rate and another loss.
pub fn after_other_steps(
    vs: &VarStore,
    layer: &Linear,
    inputs: &Tensor,
    targets: &Tensor,
    steps: usize,
) -> Result<Vec<f64>> {
    let options = SgdOptions { lr: 0.02, momentum: 0.9, ..Default::default() };
    let mut optimizer = Sgd::new(named_parameters(vs), options)?;
    let loss = || layer.forward(inputs).smooth_l1_loss(targets, Reduction::Mean, 1.0);
    let mut losses = Vec::new();
    for _ in 0..steps {
        optimizer.zero_grad();
        c10d::backward(&loss())?;
        optimizer.step()?;
        losses.push(loss().double_value(&[]));
    }
    Ok(losses)
}

/// Multiplies the loss by 0.
#[edit(mse_loss(targets, Reduction::Mean) => mse_loss(targets, Reduction::Mean) * 0.0)]
pub fn times_0() {}

/// Has a rate of 0.
#[edit(lr: 0.05 => lr: 0.0)]
pub fn rate_0() {}

/// Never calls `step`.
#[edit(optimizer.step()?; => )]
pub fn no_step() {}

/// Never sets gradients to zero, so they pile up.
#[edit(optimizer.zero_grad(); => )]
pub fn piles_up() {}

/// Compares each output with all targets: the shapes [n] and [n, 1] are broadcast to [n, n].
#[edit(outputs.mse_loss => outputs.squeeze_dim(1).mse_loss)]
pub fn pairs() {}

/// Runs the forward pass without recording it for the backward pass.
#[edit(layer.forward(inputs) => tch::no_grad(|| layer.forward(inputs)))]
pub fn no_grad() {}

/// Right: uses another regression loss.
#[edit(mse_loss(targets, Reduction::Mean) => smooth_l1_loss(targets, Reduction::Mean, 1.0))]
pub fn huber() {}

/// Sets the gradients to zero between the backward pass and the step.
#[edit(optimizer.zero_grad(); => )]
#[edit(optimizer.step()?; => optimizer.zero_grad(); optimizer.step()?;)]
pub fn zeroed_late() {}

/// Takes a step for each quarter of the samples.
pub fn mini_batches(
    vs: &VarStore,
    layer: &Linear,
    inputs: &Tensor,
    targets: &Tensor,
    steps: usize,
) -> Result<Vec<f64>> {
    let mut optimizer = Sgd::new(named_parameters(vs), SgdOptions { lr: 0.05, ..Default::default() })?;
    let mut losses = Vec::new();
    for _ in 0..steps {
        // Mini-batches converge faster: four steps of a quarter each.
        let mut first = None;
        for (inputs, targets) in inputs.chunk(4, 0).iter().zip(targets.chunk(4, 0)) {
            optimizer.zero_grad();
            let loss = layer.forward(inputs).mse_loss(&targets, Reduction::Mean);
            c10d::backward(&loss)?;
            optimizer.step()?;
            first.get_or_insert(loss.double_value(&[]));
        }
        losses.extend(first);
    }
    Ok(losses)
}

/// Squashes the outputs.
#[edit(outputs.mse_loss => outputs.sigmoid().mse_loss)]
pub fn sigmoid() {}

/// Takes two steps in one: a step for each half.
pub fn halves(vs: &VarStore, layer: &Linear, inputs: &Tensor, targets: &Tensor, steps: usize) -> Result<Vec<f64>> {
    let mut optimizer = Sgd::new(named_parameters(vs), SgdOptions { lr: 0.05, ..Default::default() })?;
    let half = inputs.size()[0] / 2;
    let mut losses = Vec::new();
    for _ in 0..steps {
        let mut sum = 0.0;
        for begin in [0, half] {
            optimizer.zero_grad();
            let outputs = layer.forward(&inputs.narrow(0, begin, half));
            let loss = outputs.mse_loss(&targets.narrow(0, begin, half), Reduction::Mean);
            c10d::backward(&loss)?;
            optimizer.step()?;
            sum += loss.double_value(&[]);
        }
        losses.push(sum / 2.0);
    }
    Ok(losses)
}

/// Leaves out the last sample.
#[edit(layer.forward(inputs) => layer.forward(&inputs.narrow(0, 0, inputs.size()[0] - 1)))]
#[edit(outputs.mse_loss(targets, Reduction::Mean) => outputs.mse_loss(&targets.narrow(0, 0, inputs.size()[0] - 1), Reduction::Mean))]
pub fn without_the_last() {}

/// Returns sums.
#[edit(losses.push(loss.double_value(&[])) => losses.push(loss.double_value(&[]) * inputs.size()[0] as f64))]
pub fn sums() {}

/// Returns the first loss for all steps.
#[edit(Ok(losses) => Ok(vec![losses[0]; steps]))]
pub fn first_loss() {}

/// Takes steps that are too short.
#[edit(lr: 0.05 => lr: 1e-4)]
pub fn short_steps() {}

/// Climbs.
#[edit(outputs.mse_loss(targets, Reduction::Mean) => outputs.mse_loss(targets, Reduction::Mean).neg())]
pub fn climbs() {}

/// Right: the mean of absolute errors.
#[edit(outputs.mse_loss(targets, Reduction::Mean) => outputs.l1_loss(targets, Reduction::Mean))]
pub fn absolute_errors() {}

/// Right: sets the gradients to zero after the step, too.
#[edit(optimizer.step()?; => optimizer.step()?; optimizer.zero_grad();)]
pub fn zeroed_at_the_end() {}

/// Right: smooth absolute errors with a corner nearer to 0.
#[edit(mse_loss(targets, Reduction::Mean) => smooth_l1_loss(targets, Reduction::Mean, 0.25))]
pub fn narrow_corner() {}

/// Right: the logarithm of the hyperbolic cosine.
#[edit(let loss = outputs.mse_loss(targets, Reduction::Mean) => let loss = (outputs - targets).cosh().log().mean(None))]
pub fn log_cosh() {}

/// Right: the root of the mean square.
#[edit(outputs.mse_loss(targets, Reduction::Mean) => outputs.mse_loss(targets, Reduction::Mean).sqrt())]
pub fn root() {}

/// Right: half the squares, with a smaller rate.
#[edit(lr: 0.05 => lr: 0.02)]
#[edit(outputs.mse_loss(targets, Reduction::Mean) => outputs.mse_loss(targets, Reduction::Mean) / 2.0)]
pub fn half_the_squares() {}
