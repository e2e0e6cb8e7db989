//! Batch normalization over the samples of all ranks, as one function that autograd can differentiate.
//!
//! It is here and not in `lockstep` because a custom autograd function requires C++. Not here: parameters, running
//! statistics and evaluation (`lockstep::nn::SyncBatchNorm2d`).

use std::ptr;

use tch::Tensor;

use crate::ProcessGroup;
use crate::error::Result;
use crate::ffi;
use crate::tensors::backend_for;
use crate::work::Call;

/// The result of [`sync_batch_norm`].
#[derive(Debug)]
pub struct SyncBatchNorm {
    /// The normalized inputs, scaled and shifted.
    pub output: Tensor,
    /// Each channel's mean over all ranks, of shape `[channels]`, without a gradient.
    pub mean: Tensor,
    /// Each channel's unbiased variance over all ranks (divided by the count minus one), like `mean`.
    pub unbiased_var: Tensor,
}

/// Normalizes `inputs` `[n, channels, …]` by each channel's mean and variance over the samples of all ranks, then
/// scales by `weight` and shifts by `bias` (both `[channels]`). Ranks may have different `n`, including 0. Means are
/// weighted by each rank's count, and the sums use double precision.
///
/// It communicates once here, and once in the backward pass if `inputs` require a gradient; a failure there is an error
/// of the call that runs backward. The backward pass can be differentiated only once. It must run on the group's
/// thread, like all calls of a group: on another thread it is safe, but its collective may run in a different order
/// than on the other ranks.
///
/// Precision: mean and variance are rounded to the precision of `inputs`. If the mean is far from zero, the resulting
/// error is up to half the distance between neighbouring inputs, divided by the standard deviation.
///
/// Source: `torch/nn/modules/_functions.py`, whose kernels exist only for CUDA. The ones used here run on CPUs, too.
///
/// # Errors
/// `BadArgument` for other shapes, and on all ranks for fewer than two values per channel in total; any failure of the
/// all-gather, with the state of the other ranks.
pub fn sync_batch_norm(
    group: &ProcessGroup,
    inputs: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    eps: f64,
) -> Result<SyncBatchNorm> {
    // The number of samples may differ between ranks, so ranks compare only the channels.
    let operation = format!("sync_batch_norm of {} channels of {:?}", weight.numel(), inputs.kind());
    let call = Call::collective(group.inner(), operation).on(backend_for(group, std::slice::from_ref(inputs)));
    let mut out = [ptr::null_mut(); 3];
    // SAFETY: the group is alive and the tensors are borrowed for the call; three pointers are written.
    let status = unsafe {
        let (inputs, weight, bias) = (inputs.as_ptr(), weight.as_ptr(), bias.as_ptr());
        ffi::lc_sync_batch_norm(group.as_ptr(), inputs, weight, bias, eps, out.as_mut_ptr())
    };
    call.end(status.check())?;
    // SAFETY: the call succeeded, so each is a new tensor that belongs to this caller; tch frees it.
    let [output, mean, unbiased_var] = out.map(|tensor| unsafe { Tensor::from_ptr(tensor) });
    Ok(SyncBatchNorm { output, mean, unbiased_var })
}
