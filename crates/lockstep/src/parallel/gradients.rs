//! Averages gradients after a step, for copies of a model part whose backward pass DDP cannot follow: a pipeline's stage has one
//! for each micro-batch.

use c10d::{ProcessGroup, ReduceOp, Result};
use tch::{Tensor, no_grad};

use crate::optim::by_dtype_and_device;

/// Replaces each gradient by its mean over the ranks of `group`, in one message for each dtype. All ranks have the same parameters in
/// the same order; those without a gradient have none on any rank.
///
/// # Errors
/// Any failure of the all-reduce.
pub fn average_gradients(group: &ProcessGroup, params: &[(String, Tensor)]) -> Result<()> {
    let grads = params.iter().map(|(_, param)| param.grad()).filter(Tensor::defined).collect();
    for mut batch in by_dtype_and_device(grads, |grad| grad) {
        group.all_reduce_coalesced(&mut batch, ReduceOp::Sum)?;
        no_grad(|| batch.iter_mut().for_each(|grad| *grad /= group.size().get() as f64));
    }
    Ok(())
}
