//! Task 4: a trainer that learns. Spot the bug.
//!
//! One linear layer with 20 inputs and one output must find the rule that produced the targets. The rule is linear, too, so the
//! layer can represent it exactly.

use anyhow::Result;
use lockstep::optim::{Optimizer, Sgd, SgdOptions, named_parameters};
use tch::nn::{Linear, Module, VarStore};
use tch::{Reduction, Tensor};

/// Trains the layer, whose weights are in `vs`, on `inputs` (`Float [n, 20]`) and `targets` (`Float [n, 1]`). Each step uses all samples in
/// one batch. Returns the loss before each step, a mean over the samples: that of the squared errors, or another usual loss of a regression
/// (half the squares, absolute values, Huber's, log-cosh, the root of the mean square). After 200 steps on 128 samples the weights are at least
/// four times nearer to the rule, and the loss is at most a quarter of the first.
pub fn learns(vs: &VarStore, layer: &Linear, inputs: &Tensor, targets: &Tensor, steps: usize) -> Result<Vec<f64>> {
    let mut optimizer = Sgd::new(named_parameters(vs), SgdOptions { lr: 0.05, ..Default::default() })?;
    let mut losses = Vec::new();
    for _ in 0..steps {
        optimizer.zero_grad();
        let outputs = layer.forward(inputs);
        // <answer>
        //~ let loss = outputs.cross_entropy_loss::<Tensor>(targets, None, Reduction::Mean, -100, 0.0);
        let loss = outputs.mse_loss(targets, Reduction::Mean);
        // </answer>
        c10d::backward(&loss)?;
        optimizer.step()?;
        losses.push(loss.double_value(&[]));
    }
    Ok(losses)
}
