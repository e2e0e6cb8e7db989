//! Collectives that autograd differentiates, and functions that it computes again in the backward pass: the parts in C++ of
//! a model that is divided over ranks. The layers choose the pairs of collectives (`lockstep::parallel`).

use std::ffi::{c_char, c_void};
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use tch::Tensor;
use torch_sys::C_tensor;

use crate::error::{Error, Result};
use crate::hooks::{drop_guarded, explain, guarded};
use crate::tensors::backend_for;
use crate::work::Call;
use crate::{ProcessGroup, Splits, ffi, stragglers};

/// What the ranks of a group do with one tensor per rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// Each rank keeps its own tensor; nothing is sent.
    Identity = 0,
    /// Each rank gets the sum.
    AllReduce = 1,
    /// Each rank gets the tensors of all ranks, concatenated along a dimension.
    AllGather = 2,
    /// Each rank gets its part of the sum.
    ReduceScatter = 3,
    /// Each rank keeps its part of its own tensor; nothing is sent.
    OwnPart = 4,
}

impl Exchange {
    fn name(self) -> &'static str {
        match self {
            Exchange::Identity => "identity",
            Exchange::AllReduce => "all_reduce",
            Exchange::AllGather => "all_gather",
            Exchange::ReduceScatter => "reduce_scatter",
            Exchange::OwnPart => "own part",
        }
    }
}

/// Applies `forward` to `input` now, and `backward` to the gradient in the backward pass. Parts are equal and along `dim`.
///
/// `input` has the same shape on all ranks. The backward pass can be differentiated only once and belongs on the group's thread:
/// run it by [`backward_over`].
///
/// # Errors
/// `BadArgument` for a dimension that `input` does not have or that cannot be divided; any failure of the collective, with the
/// state of the other ranks.
pub fn exchange(
    group: &ProcessGroup,
    input: &Tensor,
    forward: Exchange,
    backward: Exchange,
    dim: usize,
) -> Result<Tensor> {
    let operation = format!("{} of {:?} {:?} in a layer", forward.name(), input.size(), input.kind());
    let communicates = !matches!(forward, Exchange::Identity | Exchange::OwnPart);
    let call = if communicates { Call::collective } else { Call::local }(group.inner(), operation);
    let call = call.on(backend_for(group, std::slice::from_ref(input)));
    let _waiting = communicates.then(stragglers::waiting);
    let mut out = ptr::null_mut();
    // SAFETY: the group is alive, the tensor is borrowed for the call, and one pointer is written.
    let status = unsafe {
        ffi::lc_paired(group.as_ptr(), input.as_ptr(), forward as i64, backward as i64, dim as i64, &mut out)
    };
    call.end(status.check())?;
    // SAFETY: the call succeeded, so it is a new tensor that belongs to this caller; tch frees it.
    Ok(unsafe { Tensor::from_ptr(out) })
}

/// Sends rows of `input` to each rank and returns what the ranks send here, in their order: [`ProcessGroup::all_to_all_single`] that
/// autograd differentiates. The gradient of each row goes back to the rank that sent the row.
///
/// All ranks must use the result in the loss that they run backward from, even a rank that has received nothing (as a sum of no rows): the
/// backward pass is a call of all ranks. It can be differentiated only once and belongs on the group's thread: run it by [`backward_over`].
///
/// Source: `torch/distributed/nn/functional.py`, `all_to_all_single`.
///
/// # Errors
/// `BadArgument` for lists that do not have a number for each rank, or do not add up to the rows of `input`; any failure of the
/// collective, with the state of the other ranks.
pub fn all_to_all_single(group: &ProcessGroup, input: &Tensor, splits: &Splits) -> Result<Tensor> {
    // Ranks may send different numbers of rows, so they compare only the dtype.
    let operation = format!("all_to_all_single of {:?} in a layer", input.kind());
    let call = Call::collective(group.inner(), operation).on(backend_for(group, std::slice::from_ref(input)));
    let _waiting = stragglers::waiting();
    let (receives, sends) = splits.lists();
    if sends.len() != receives.len() {
        let detail = format!("{} numbers of rows to send and {} to receive", sends.len(), receives.len());
        return Err(Error::bad_argument("all_to_all_single", detail).at_rank(group.rank()));
    }
    let mut out = ptr::null_mut();
    // SAFETY: the group is alive, tensor and lists are borrowed for the call, and one pointer is written.
    let status = unsafe {
        let (to, from) = (sends.as_ptr(), receives.as_ptr());
        ffi::lc_rows_exchanged(group.as_ptr(), input.as_ptr(), to, from, sends.len(), &mut out)
    };
    call.end(status.check())?;
    // SAFETY: the call succeeded, so it is a new tensor that belongs to this caller; tch frees it.
    Ok(unsafe { Tensor::from_ptr(out) })
}

/// Runs backward from a scalar through layers that communicate over `group`, all ranks at the same point: a failure names the
/// state of the other ranks, which [`backward`](crate::backward) does not.
///
/// # Errors
/// Any failure of a collective in the pass.
pub fn backward_over(group: &ProcessGroup, loss: &Tensor) -> Result<()> {
    let call = Call::collective(group.inner(), "backward through layers that communicate".into());
    let call = call.on(backend_for(group, std::slice::from_ref(loss)));
    // SAFETY: the tensor is borrowed for the call.
    call.end(unsafe { ffi::lc_backward(loss.as_ptr()) }.check())
}

type Body = Box<dyn Fn(&Tensor) -> Tensor + Send>;

/// Computes `body(input)` and keeps only `input` for the backward pass, which runs `body` a second time with the same random
/// numbers. This trades time for the memory of the activations inside; `torch.utils.checkpoint.checkpoint`.
///
/// `body` must compute the same each time, from `input` and from parameters that it owns handles to (a layer in an `Arc<Mutex<_>>`, or
/// clones of the tensors). It may communicate if all ranks have the same checkpoints. The backward pass inside is a separate pass:
/// `torch.autograd.grad` and DDP's `find_unused_parameters` do not see into it, as with `use_reentrant=True` in Python.
///
/// Random numbers come from the generator of `input`'s device. Other threads that draw from the CPU's generator meanwhile
/// get the same numbers twice.
///
/// # Errors
/// `body` panicked: the error has the panic's text. It comes from this call or from the call that runs backward.
pub fn checkpoint(input: &Tensor, body: impl Fn(&Tensor) -> Tensor + Send + 'static) -> Result<Tensor> {
    let begun = Instant::now();
    let body: Mutex<Body> = Mutex::new(Box::new(body));
    let data = Box::into_raw(Box::new(body)).cast::<c_void>();
    let mut out = ptr::null_mut();
    // SAFETY: the tensor is borrowed for the call; `data` belongs to the callee from here on, which passes it to these
    // functions alone and frees it once.
    let status = unsafe { ffi::lc_checkpoint(input.as_ptr(), call_body, free_body, data, &mut out) };
    status.check().map_err(|exception| Error::new("checkpoint", exception).after(begun.elapsed()))?;
    // SAFETY: the call succeeded, so it is a new tensor that belongs to this caller; tch frees it.
    Ok(unsafe { Tensor::from_ptr(out) })
}

/// # Safety
/// `data` is that of [`checkpoint`] and not yet freed, `input` a tensor that becomes the callee's, and `why` has room for
/// `capacity` bytes.
unsafe extern "C" fn call_body(
    data: *mut c_void,
    input: *mut C_tensor,
    why: *mut c_char,
    capacity: usize,
) -> *mut C_tensor {
    // SAFETY: the input belongs to this call; tch frees it.
    let input = unsafe { Tensor::from_ptr(input) };
    // SAFETY: `checkpoint` made it, and the shim frees it after its last call.
    let body = unsafe { &*data.cast::<Mutex<Body>>() };
    let run = move || Ok::<_, Error>(body.lock().unwrap_or_else(PoisonError::into_inner)(&input));
    match guarded(run) {
        // The caller frees it.
        Ok(output) => ManuallyDrop::new(output).as_mut_ptr(),
        Err(text) => {
            // SAFETY: as this function's.
            unsafe { explain(&text, why, capacity) };
            ptr::null_mut()
        }
    }
}

/// # Safety
/// `data` is that of [`checkpoint`], and this its only release.
unsafe extern "C" fn free_body(data: *mut c_void) {
    // SAFETY: `checkpoint` made it by `Box::into_raw`.
    let body = unsafe { Box::from_raw(data.cast::<Mutex<Body>>()) };
    drop_guarded(body);
}

// Batch normalization over the samples of all ranks, as one function that autograd can differentiate.
//
// It is here and not in `lockstep` because a custom autograd function requires C++. Not here: parameters, running
// statistics and evaluation (`lockstep::nn::SyncBatchNorm2d`).

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
