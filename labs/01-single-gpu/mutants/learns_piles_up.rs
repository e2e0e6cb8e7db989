//! Gradients are never set back, and pile up.

use anyhow::Result;
use lockstep::optim::{Optimizer, Sgd, SgdOptions, named_parameters};
use tch::nn::{Linear, Module, VarStore};
use tch::{Reduction, Tensor};

pub fn learns(vs: &VarStore, layer: &Linear, inputs: &Tensor, targets: &Tensor, steps: usize) -> Result<Vec<f64>> {
    let mut optimizer = Sgd::new(named_parameters(vs), SgdOptions { lr: 0.05, ..Default::default() })?;
    let mut losses = Vec::new();
    for _ in 0..steps {
        let loss = layer.forward(inputs).mse_loss(targets, Reduction::Mean);
        c10d::backward(&loss)?;
        optimizer.step()?;
        losses.push(loss.double_value(&[]));
    }
    Ok(losses)
}
