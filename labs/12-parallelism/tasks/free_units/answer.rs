//! Task 4: free a unit too early, and find it.
//!
//! A training step of some layers whose weights are divided over the ranks: fully sharded. A weight is gathered when it is needed and freed
//! afterwards; what is freed too early is NaN. The given program frees one too early. Run it: the finding says which gradients are NaN.

use anyhow::Result;
use tch::Tensor;

use crate::layers::Unit;

/// Returns this rank's rows of the mean gradient of each unit's weight, in the units' order; the loss is half of the squared distance between
/// the last unit's outputs and `targets`. `x` and `targets` `[n, features]` are the rank's own.
///
/// At most two weights are whole at any time, and at most two gradients of whole weights. A unit is gathered at most twice and reduced
/// once.
pub fn free_units(units: &[Unit<'_>], x: &Tensor, targets: &Tensor) -> Result<Vec<Tensor>> {
    let mut inputs = Vec::new();
    let mut x = x.shallow_clone();
    for unit in units {
        unit.gather()?;
        let y = unit.forward(&x);
        unit.free();
        inputs.push(std::mem::replace(&mut x, y));
    }
    let mut of_outputs = x - targets;
    let mut gradients = Vec::new();
    // <answer>
    //~ for (unit, x) in units.iter().zip(&inputs).rev() {
    //~     unit.gather()?;
    //~     gradients.push(unit.reduce(unit.weight_gradient(x, &of_outputs))?);
    //~     unit.free(); // its gradient is done
    //~     of_outputs = unit.input_gradient(&of_outputs);
    //~ }
    for (unit, x) in units.iter().zip(&inputs).rev() {
        unit.gather()?;
        let of_weight = unit.weight_gradient(x, &of_outputs);
        // The last use of the weight: the gradient of the unit's inputs is that of the outputs of the unit before.
        of_outputs = unit.input_gradient(&of_outputs);
        unit.free();
        gradients.push(unit.reduce(of_weight)?);
    }
    // </answer>
    gradients.reverse();
    Ok(gradients)
}
