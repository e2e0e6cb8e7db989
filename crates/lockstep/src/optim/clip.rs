//! Clipping gradients by their norm, also where parameters are divided among ranks.

use c10d::{Error, ProcessGroup, ReduceOp, Result, from_caller};
use tch::{Device, Kind, Tensor, no_grad};

/// Added to the norm before dividing by it, as in PyTorch.
const TINY: f64 = 1e-6;

/// Parameters with gradients, and the groups over which they are divided.
#[derive(Clone, Copy, Debug)]
pub struct GradParts<'a> {
    /// This rank's parameters.
    pub params: &'a [(String, Tensor)],
    /// In each of these groups, every rank has other elements. Empty where each rank has all of them, or the same copies.
    pub divided_over: &'a [&'a ProcessGroup],
}

impl<'a> GradParts<'a> {
    /// Parameters that are whole on this rank.
    pub fn whole(params: &'a [(String, Tensor)]) -> Self {
        GradParts { params, divided_over: &[] }
    }
}

/// `torch.nn.utils.clip_grad_norm_`: if the norm of all gradients together is above `max_norm`, multiplies each gradient by
/// `max_norm / (norm + 1e-6)`. Returns the norm from before.
///
/// A rank's own norm is the norm only if its gradients are whole. If they are divided, the squares are first added over the ranks, each
/// element once:
///
/// | how | parts |
/// |---|---|
/// | [DDP](crate::DistributedDataParallel), also with [ZeRO](super::ZeroRedundancyOptimizer) | one, whole |
/// | [`FullyShard`](crate::parallel::FullyShard) | one, divided over its group |
/// | layers of [`parallel::tensor`](crate::parallel::tensor) | the divided layers, over their group; the others, which all ranks of the group have, whole |
/// | [`Pipeline`](crate::parallel::Pipeline) | all of the above also over the group of the stages |
///
/// ```no_run
/// # use lockstep::{optim::{GradParts, clip_grad_norm}, parallel::FullyShard};
/// # fn clip(sharded: &FullyShard) -> c10d::Result<()> {
/// let norm = clip_grad_norm(&[GradParts { params: &sharded.named_parameters(), divided_over: &[sharded.group()] }], 1.0)?;
/// # Ok(()) }
/// ```
///
/// A collective of all groups, which all ranks call with the same number of parts, including ranks without gradients. Sums are in
/// double precision, so that the norm does not depend on how parameters are divided, except in its last bits. A norm that is NaN
/// makes all gradients NaN, and an infinite one makes their finite elements 0 and the others NaN, as in PyTorch by default. Under
/// a [`GradScaler`](crate::amp::GradScaler), call its `unscale` first. An infinite `max_norm` only measures.
///
/// # Errors
/// `BadArgument` for a `max_norm` that is not above 0, and a sparse gradient; any failure of an all-reduce. They name the caller's line.
#[track_caller]
pub fn clip_grad_norm(parts: &[GradParts<'_>], max_norm: f64) -> Result<f64> {
    from_caller(clipped(parts, max_norm))
}

fn clipped(parts: &[GradParts<'_>], max_norm: f64) -> Result<f64> {
    const CLIP: &str = "clip_grad_norm";
    if max_norm.is_nan() || max_norm <= 0.0 {
        return Err(Error::bad_argument(CLIP, format!("max_norm is {max_norm}: choose one above 0")));
    }
    let mut squares = 0.0;
    for part in parts {
        squares += part.squares(CLIP)?;
    }
    let norm = squares.sqrt();
    let factor = max_norm / (norm + TINY);
    if max_norm.is_finite() && (factor.is_nan() || factor < 1.0) {
        let grads = parts.iter().flat_map(|part| part.params).map(|(_, param)| param.grad());
        no_grad(|| grads.filter(Tensor::defined).for_each(|mut grad| grad *= factor));
    }
    Ok(norm)
}

impl GradParts<'_> {
    /// The sum of the squares of all elements, over the groups.
    fn squares(&self, operation: &str) -> Result<f64> {
        let mut sum = Tensor::zeros([], (Kind::Double, Device::Cpu));
        for (name, param) in self.params {
            let grad = param.grad();
            if !grad.defined() {
                continue;
            }
            if grad.is_sparse() {
                return Err(Error::bad_argument(operation, format!("the gradient of {name} is sparse: leave it out")));
            }
            // On a GPU the program waits for one value, not for one per parameter.
            sum = sum.to_device(grad.device()) + no_grad(|| grad.norm_scalaropt_dtype(2, Kind::Double).square());
        }
        for group in self.divided_over {
            sum = sum.to_device(group.device());
            group.all_reduce(&mut sum, ReduceOp::Sum)?;
        }
        Ok(sum.double_value(&[]))
    }
}
