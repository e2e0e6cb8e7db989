//! Averages gradients after a step, for copies of a model part whose backward pass DDP cannot follow: a pipeline's stage has one
//! for each micro-batch.

use c10d::{ProcessGroup, ReduceOp, Result};
use tch::{Tensor, no_grad};

/// Replaces each gradient by its mean over the ranks of `group`, in one message. All ranks have the same parameters in the same
/// order; those without a gradient have none on any rank.
///
/// # Errors
/// Any failure of the all-reduce.
pub fn average_gradients(group: &ProcessGroup, params: &[(String, Tensor)]) -> Result<()> {
    let mut grads: Vec<Tensor> = params.iter().map(|(_, param)| param.grad()).filter(Tensor::defined).collect();
    group.all_reduce_coalesced(&mut grads, ReduceOp::Sum)?;
    no_grad(|| grads.iter_mut().for_each(|grad| *grad /= group.size().get() as f64));
    Ok(())
}
