//! Batch normalization over the samples of all ranks, as one function that autograd can go back through.
//!
//! It is here and not in `lockstep` since an autograd function of one's own takes C++. Leaves out parameters, running
//! statistics and evaluation: `lockstep::nn::SyncBatchNorm2d`.

use std::ptr;

use tch::Tensor;

use crate::ProcessGroup;
use crate::error::Result;
use crate::ffi;
use crate::work::Call;

/// What [`sync_batch_norm`] gives.
#[derive(Debug)]
pub struct SyncBatchNorm {
    /// The normalized inputs, scaled and shifted.
    pub output: Tensor,
    /// Each channel's mean over all ranks, shape `[channels]`; no gradient goes through it.
    pub mean: Tensor,
    /// Each channel's variance over all ranks, by their count less one; as `mean`.
    pub unbiased_var: Tensor,
}

/// Normalizes `inputs` `[n, channels, …]` by each channel's mean and variance over the samples of all ranks, then scales by
/// `weight` and shifts by `bias` (`[channels]` both). Ranks may have different `n`, also 0. Means are weighted by each rank's
/// own count, and the sums are taken in double precision.
///
/// Communicates once here, and once in the backward pass if `inputs` need a gradient; there a failure is an error of the call
/// that runs backward. The backward pass differentiates once only. It must run on the thread of the group, as all calls of a group
/// must: on another it is safe, but its collective may come in another order than on the other ranks.
///
/// Precision: mean and variance are rounded to the precision of `inputs`. Where the mean is far from zero that costs up to half the
/// distance between neighbouring inputs, divided by the deviation.
///
/// Source: `torch/nn/modules/_functions.py`, whose kernels exist for CUDA alone. These run on CPUs too.
///
/// # Errors
/// `BadArgument` for other shapes, and on all ranks for fewer than two values a channel over all of them; any failure of the
/// all-gather, with the ranks that are missing or elsewhere.
pub fn sync_batch_norm(
    group: &ProcessGroup,
    inputs: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    eps: f64,
) -> Result<SyncBatchNorm> {
    // The number of samples may differ from rank to rank, so that only the channels are part of the call that ranks compare.
    let operation = format!("sync_batch_norm of {} channels of {:?}", weight.numel(), inputs.kind());
    let call = Call::collective(group.inner(), operation);
    let mut out = [ptr::null_mut(); 3];
    // SAFETY: the group is alive and the tensors are borrowed for the call; three pointers are written.
    let status = unsafe {
        let (inputs, weight, bias) = (inputs.as_ptr(), weight.as_ptr(), bias.as_ptr());
        ffi::lc_sync_batch_norm(group.as_ptr(), inputs, weight, bias, eps, out.as_mut_ptr())
    };
    call.end(status.check())?;
    // SAFETY: the call succeeded, so each is a tensor that the shim made for us alone; tch frees it.
    let [output, mean, unbiased_var] = out.map(|tensor| unsafe { Tensor::from_ptr(tensor) });
    Ok(SyncBatchNorm { output, mean, unbiased_var })
}
