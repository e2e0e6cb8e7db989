//! Task 4: gradient accumulation. Spot the bug.
//!
//! The batch of a step does not fit into memory, so a rank takes it in several micro-batches: their gradients add up, and one exchange
//! follows the last. The result must be the gradient of one large batch: of the mean over all samples of all ranks. Micro-batches may
//! differ in size; all ranks have the same sizes.

use anyhow::Result;
use tch::{Reduction, Tensor};

use crate::training::Model;

/// Leaves the gradient of the mean squared error over all samples of `micro` (inputs `Double [n, 3]`, targets `Double [n]`) and of all
/// ranks. Exchanges gradients once, and takes no more than one micro-batch at a time: its backward pass is over before the next begins.
pub fn accumulate(model: &Model, micro: &[(Tensor, Tensor)]) -> Result<()> {
    // This works, but the gradient is not that of one large batch, and each pass exchanges gradients. See `Model::no_sync`.
    for (inputs, targets) in micro {
        let loss = model.forward(inputs)?.mse_loss(targets, Reduction::Mean);
        model.backward(&loss)?;
    }
    Ok(())
}
