//! Cross-entropy over one class.

use anyhow::Result;
use lockstep::optim::{Optimizer, Sgd, SgdOptions, named_parameters};
use tch::nn::{Linear, Module, VarStore};
use tch::{Reduction, Tensor};

pub fn learns(vs: &VarStore, layer: &Linear, inputs: &Tensor, targets: &Tensor, steps: usize) -> Result<Vec<f64>> {
    let mut optimizer = Sgd::new(named_parameters(vs), SgdOptions { lr: 0.05, ..Default::default() })?;
    let mut losses = Vec::new();
    for _ in 0..steps {
        optimizer.zero_grad();
        let loss = layer.forward(inputs).cross_entropy_loss::<Tensor>(targets, None, Reduction::Mean, -100, 0.0);
        c10d::backward(&loss)?;
        optimizer.step()?;
        losses.push(loss.double_value(&[]));
    }
    Ok(losses)
}
