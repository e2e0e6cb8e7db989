//! Collectives that autograd differentiates, and functions that it computes again in the backward pass: the parts in C++ of
//! a model that is divided over ranks. Then callbacks from autograd: for the tensors that it saves for the backward pass
//! ([`with_saved_tensors`]), and when a parameter's gradient is complete ([`on_gradient`]).
//!
//! Not here: the layers, which choose the pairs of collectives (`lockstep::parallel`).

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{c_char, c_void};
use std::fmt::Display;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use lockstep_contract::error_file::panic_text;
use tch::Tensor;
use torch_sys::C_tensor;

use crate::error::{Error, Result};
use crate::tensors::backend_for;
use crate::work::Call;
use crate::{OwnThread, ProcessGroup, Splits, ffi, stragglers};

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
    let call = if communicates { Call::inside } else { Call::local }(group.inner(), operation);
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
    let call = Call::inside(group.inner(), operation).on(backend_for(group, std::slice::from_ref(input)));
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
    let call = Call::pass(group.inner(), "backward through layers that communicate".into());
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
/// `data` was made by [`checkpoint`] and is not yet freed, `input` a tensor that becomes the callee's, and `why` has room for
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
/// `data` was made by [`checkpoint`] and is released only here.
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
    let call = Call::inside(group.inner(), operation).on(backend_for(group, std::slice::from_ref(inputs)));
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

/// Returns the values of a saved tensor in the backward pass, perhaps more than once.
pub type Unpack = Box<dyn Fn() -> Result<Tensor>>;

/// Called for each tensor that autograd saves. `None` lets autograd keep the tensor; otherwise autograd keeps the returned
/// function instead, which returns a tensor with the same values, shape and dtype.
pub type Pack = Rc<dyn Fn(&Tensor) -> Option<Unpack>>;

thread_local! {
    /// The innermost is last.
    static PACKS: RefCell<Vec<Pack>> = const { RefCell::new(Vec::new()) };
}

/// Runs `body` and calls `pack` for each tensor that autograd saves for the backward pass;
/// `torch.autograd.graph.saved_tensors_hooks`. Calls can be nested: the innermost `pack` is called first, and the next one
/// if it lets autograd keep the tensor.
///
/// The functions belong to this thread: a backward pass on another one, as libtorch runs it for a GPU, is refused. If a
/// tensor that autograd keeps is changed in place before its use, the backward pass fails, as always.
///
/// # Errors
/// libtorch refuses the hooks.
pub fn with_saved_tensors<T>(pack: Pack, body: impl FnOnce() -> T) -> Result<T> {
    // SAFETY: the three functions have the types and contracts that the shim states, and live as long as the process.
    let made = unsafe { ffi::lc_saved_tensors_init(call_pack, call_unpack, free_unpack) };
    made.check().map_err(|exception| Error::new("watch the tensors that autograd saves", exception))?;
    PACKS.with_borrow_mut(|packs| packs.push(pack));
    // SAFETY: it sets a variable of this thread.
    let _restore = Restore(unsafe { ffi::lc_saved_tensors_hook(true) });
    Ok(body())
}

/// Ends a call of [`with_saved_tensors`], even if its body panics.
struct Restore(bool);

impl Drop for Restore {
    fn drop(&mut self) {
        PACKS.with_borrow_mut(Vec::pop);
        // SAFETY: it sets a variable of this thread.
        unsafe { ffi::lc_saved_tensors_hook(self.0) };
    }
}

/// Calls `then` in each backward pass when the gradient of `parameter` has been accumulated;
/// `Tensor.register_post_accumulate_grad_hook`. `then` replaces an earlier function and lives as long as the parameter: if
/// it holds the parameter itself, neither is ever freed.
///
/// The call that runs backward returns its error or panic. The function belongs to this thread: see [`with_saved_tensors`].
///
/// # Errors
/// `BadArgument` for a tensor that is not a leaf or does not require a gradient.
pub fn on_gradient(parameter: &Tensor, then: impl Fn() -> Result<()> + 'static) -> Result<()> {
    let then: Box<OwnThread<GradientHook>> = Box::new(OwnThread::new(Box::new(then)));
    let data = Box::into_raw(then).cast::<c_void>();
    // SAFETY: the tensor is borrowed for the call; `data` belongs to the callee from here on, which passes it to these functions
    // alone and frees it once.
    let status = unsafe { ffi::lc_gradient_hook(parameter.as_ptr(), call_gradient_hook, free_gradient_hook, data) };
    status.check().map_err(|exception| Error::new("watch the gradient of a parameter", exception))
}

/// Adds `grad` to the gradient of `tensor`. If `tensor` has no gradient, `grad` becomes its gradient, without a copy.
///
/// # Errors
/// `grad` has another shape than the existing gradient.
pub fn add_grad(tensor: &mut Tensor, grad: &Tensor) -> Result<()> {
    if tensor.size() != grad.size() || tensor.kind() != grad.kind() {
        let (given, wanted) = ((grad.size(), grad.kind()), (tensor.size(), tensor.kind()));
        return Err(Error::bad_argument("add a gradient", format!("it is {given:?}, its tensor {wanted:?}")));
    }
    // SAFETY: the tensors are borrowed for the call, the first exclusively.
    let status = unsafe { ffi::lc_grad_add(tensor.as_ptr(), grad.as_ptr()) };
    status.check().map_err(|exception| Error::new("add a gradient", exception))
}

type GradientHook = Box<dyn Fn() -> Result<()>>;
type Packed = OwnThread<Unpack>;

fn ask(tensor: &Tensor) -> Option<Unpack> {
    // A copy, because a function may itself compute, and so be called again.
    let packs = PACKS.with_borrow(Clone::clone);
    packs.iter().rev().find_map(|pack| pack(tensor))
}

/// # Safety
/// `tensor` is borrowed for the call, `packed` can be written, and `why` has room for `capacity` bytes.
unsafe extern "C" fn call_pack(
    tensor: *const C_tensor,
    packed: *mut *mut c_void,
    why: *mut c_char,
    capacity: usize,
) -> bool {
    let asked = guarded(|| {
        // SAFETY: the tensor is alive; this takes a reference of its own.
        let tensor = unsafe { Tensor::clone_from_ptr(tensor.cast_mut()) };
        Ok::<_, Error>(ask(&tensor))
    });
    match asked {
        Ok(unpack) => {
            let kept = unpack.map(|unpack| Box::into_raw(Box::new(Packed::new(unpack))).cast::<c_void>());
            // SAFETY: the caller lets it be written.
            unsafe { *packed = kept.unwrap_or(ptr::null_mut()) };
            true
        }
        // SAFETY: as this function's.
        Err(text) => unsafe { explain(&text, why, capacity) },
    }
}

/// # Safety
/// `packed` is of [`call_pack`] and not freed, and `why` has room for `capacity` bytes.
unsafe extern "C" fn call_unpack(packed: *const c_void, why: *mut c_char, capacity: usize) -> *mut C_tensor {
    // SAFETY: `call_pack` made it, and the shim frees it after its last call.
    let unpack = unsafe { &*packed.cast::<Packed>() };
    match guarded(|| unpack.get()?()) {
        // The caller frees it.
        Ok(tensor) => ManuallyDrop::new(tensor).as_mut_ptr(),
        Err(text) => {
            // SAFETY: as this function's.
            unsafe { explain(&text, why, capacity) };
            ptr::null_mut()
        }
    }
}

/// # Safety
/// `packed` is of [`call_pack`], and this its only release.
unsafe extern "C" fn free_unpack(packed: *mut c_void) {
    // SAFETY: `call_pack` made it by `Box::into_raw`.
    let packed = unsafe { Box::from_raw(packed.cast::<Packed>()) };
    drop_guarded(packed);
}

/// # Safety
/// `data` is of [`on_gradient`] and not freed, and `why` has room for `capacity` bytes.
unsafe extern "C" fn call_gradient_hook(data: *const c_void, why: *mut c_char, capacity: usize) -> bool {
    // SAFETY: `on_gradient` made it, and the shim frees it after its last call.
    let then = unsafe { &*data.cast::<OwnThread<GradientHook>>() };
    match guarded(|| then.get()?()) {
        Ok(()) => true,
        // SAFETY: as this function's.
        Err(text) => unsafe { explain(&text, why, capacity) },
    }
}

/// # Safety
/// `data` is of [`on_gradient`], and this its only release.
unsafe extern "C" fn free_gradient_hook(data: *mut c_void) {
    // SAFETY: `on_gradient` made it by `Box::into_raw`.
    let then = unsafe { Box::from_raw(data.cast::<OwnThread<GradientHook>>()) };
    drop_guarded(then);
}

// Callbacks from C++ into Rust: a panic must not cross the boundary, neither from the call nor from the drop of a closure's
// values.

/// The result, or the text of the error or the panic.
fn guarded<T, E: Display>(call: impl FnOnce() -> Result<T, E>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(panic) => Err(text_of(panic.as_ref())),
    }
}

fn drop_guarded<T>(value: T) {
    let _ = catch_unwind(AssertUnwindSafe(move || drop(value)));
}

/// A panic's text, or the error of a layer that failed.
fn text_of(panic: &(dyn Any + Send)) -> String {
    let error = || panic.downcast_ref::<Error>().map(Error::to_string);
    panic_text(panic).map(str::to_owned).or_else(error).unwrap_or_else(|| "a panic".to_owned())
}

/// Writes as much of the text as fits; returns false.
///
/// # Safety
/// `why` has room for `capacity` bytes.
pub(crate) unsafe fn explain(text: &str, why: *mut c_char, capacity: usize) -> bool {
    let text = &text.as_bytes()[..text.len().min(capacity.saturating_sub(1))];
    // SAFETY: `why` has room for more than these bytes.
    unsafe {
        ptr::copy_nonoverlapping(text.as_ptr(), why.cast(), text.len());
        *why.add(text.len()) = 0;
    }
    false
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::panic::catch_unwind;

    use tch::{Device, Kind};

    use super::*;
    use crate::{Storage, backward};

    fn leaf() -> Tensor {
        Tensor::from_slice(&[1.0, 2.0, 3.0]).set_requires_grad(true)
    }

    /// A tensor whose gradient reads it.
    fn exp(x: &Tensor, pack: Pack) -> Tensor {
        with_saved_tensors(pack, || x.exp()).unwrap()
    }

    #[test]
    fn a_saved_tensor_is_given_back_by_a_function_and_is_freed_meanwhile() {
        let (x, calls) = (leaf(), Rc::new(Cell::new(0)));
        let counted = Rc::clone(&calls);
        let pack = move |saved: &Tensor| {
            let (half, counted) = (saved.detach() / 2.0, Rc::clone(&counted));
            Some(Box::new(move || {
                counted.set(counted.get() + 1);
                Ok(&half * 2.0)
            }) as Unpack)
        };
        let y = exp(&x, Rc::new(pack));
        let (memory, loss) = (Storage::of(&y).unwrap(), y.sum(Kind::Double));
        drop(y);
        assert_eq!((memory.bytes(), calls.get()), (0, 0));
        backward(&loss).unwrap();
        assert_eq!(calls.get(), 1);
        assert!(x.grad().allclose(&x.detach().exp(), 1e-12, 0.0, false));
    }

    #[test]
    fn what_autograd_keeps_is_freed_with_its_graph() {
        let y = exp(&leaf(), Rc::new(|_: &Tensor| None));
        let memory = Storage::of(&y).unwrap();
        let loss = y.sum(Kind::Double);
        drop(y);
        assert_eq!(memory.bytes(), 24);
        drop(loss);
        assert_eq!(memory.bytes(), 0);
    }

    #[test]
    fn a_tensor_that_is_changed_before_its_use_is_an_error() {
        let mut y = exp(&leaf(), Rc::new(|_: &Tensor| None));
        let loss = y.sum(Kind::Double);
        let _changed = tch::no_grad(|| y.fill_(0.0));
        let error = backward(&loss).unwrap_err();
        assert!(error.detail().contains("modified by an inplace operation"), "{error}");
    }

    #[test]
    fn the_innermost_function_is_asked_first() {
        let asked = Rc::new(RefCell::new(Vec::new()));
        let pack = |name: &'static str, keeps: bool| -> Pack {
            let asked = Rc::clone(&asked);
            Rc::new(move |saved: &Tensor| {
                asked.borrow_mut().push(name);
                let saved = saved.detach();
                (!keeps).then(|| Box::new(move || Ok(saved.shallow_clone())) as Unpack)
            })
        };
        let both = |keeps| with_saved_tensors(pack("outer", true), || exp(&leaf(), pack("inner", keeps))).unwrap();
        drop([both(true), both(false), leaf().exp()]);
        assert_eq!(*asked.borrow(), ["inner", "outer", "inner"]);
    }

    #[test]
    fn errors_and_panics_are_those_of_backward() {
        let refusal = || Error::bad_argument("unpack", "it was lost");
        let failing = exp(&leaf(), Rc::new(move |_: &Tensor| Some(Box::new(move || Err(refusal())) as Unpack)));
        let error = backward(&failing.sum(Kind::Double)).unwrap_err();
        assert!(error.detail().contains("it was lost"), "{error}");
        let panicking =
            exp(&leaf(), Rc::new(|_: &Tensor| Some(Box::new(|| -> Result<Tensor> { panic!("a bug") }) as Unpack)));
        let error = backward(&panicking.sum(Kind::Double)).unwrap_err();
        assert!(error.detail().contains("a bug"), "{error}");

        let x = leaf();
        on_gradient(&x, move || Err(refusal())).unwrap();
        let error = backward(&x.sum(Kind::Double)).unwrap_err();
        assert!(error.detail().contains("it was lost"), "{error}");
    }

    #[test]
    fn a_body_that_panics_ends_its_hooks() {
        let caught = catch_unwind(|| {
            with_saved_tensors(Rc::new(|_: &Tensor| -> Option<Unpack> { panic!("asked") }), || -> () {
                panic!("a bug")
            })
        });
        assert!(caught.is_err());
        backward(&leaf().exp().sum(Kind::Double)).unwrap();
    }

    #[test]
    fn functions_are_refused_on_another_thread() {
        let y = exp(
            &leaf(),
            Rc::new(|saved: &Tensor| {
                let saved = saved.detach();
                Some(Box::new(move || Ok(saved.shallow_clone())) as Unpack)
            }),
        );
        let x = leaf();
        on_gradient(&x, || Ok(())).unwrap();
        for loss in [y.sum(Kind::Double), x.sum(Kind::Double)] {
            let error = std::thread::spawn(move || backward(&loss).unwrap_err()).join().unwrap();
            assert!(error.detail().contains("moved to another thread"), "{error}");
        }
    }

    #[test]
    fn a_gradient_is_there_when_its_function_is_called_and_the_last_function_counts() {
        let (x, seen) = (leaf(), Rc::new(Cell::new(0.0)));
        on_gradient(&x, || -> Result<()> { panic!("it was replaced") }).unwrap();
        let (noted, param) = (Rc::clone(&seen), x.shallow_clone());
        on_gradient(&x, move || {
            noted.set(param.grad().double_value(&[0]));
            Ok(())
        })
        .unwrap();
        for expected in [2.0, 4.0] {
            backward(&(&x * 2.0).sum(Kind::Double)).unwrap();
            assert_eq!(seen.get(), expected);
        }
        let frozen = Tensor::zeros([2], (Kind::Float, Device::Cpu));
        assert!(on_gradient(&frozen, || Ok(())).unwrap_err().to_string().contains("bad argument"));
    }

    #[test]
    fn gradients_are_added() {
        let mut x = leaf();
        let one = Tensor::ones([3], (Kind::Double, Device::Cpu));
        add_grad(&mut x, &one.copy()).unwrap();
        add_grad(&mut x, &(&one * 2.0)).unwrap();
        assert_eq!(x.grad(), &one * 3.0);
        let error = add_grad(&mut x, &Tensor::from(1.0)).unwrap_err();
        assert!(error.to_string().contains("bad argument"), "{error}");
    }
}
