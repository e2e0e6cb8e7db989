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
    let grads: Vec<Tensor> = params.iter().map(|(_, param)| param.grad()).filter(Tensor::defined).collect();
    if grads.is_empty() {
        return Ok(());
    }
    no_grad(|| {
        let mut flat = Tensor::cat(&grads.iter().map(|grad| grad.flatten(0, -1)).collect::<Vec<_>>(), 0);
        group.all_reduce(&mut flat, ReduceOp::Sum)?;
        flat /= group.size().get() as f64;
        let mut at = 0;
        for mut grad in grads {
            let length = grad.numel() as i64;
            grad.copy_(&flat.narrow(0, at, length).reshape_as(&grad));
            at += length;
        }
        Ok(())
    })
}
