//! Callbacks from autograd: for the tensors that it saves for the backward pass ([`with_saved_tensors`]), and when a
//! parameter's gradient is complete ([`on_gradient`]).
//!
//! Not here: the code that uses them (`lockstep::parallel`).

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{c_char, c_void};
use std::fmt::Display;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::rc::Rc;

use lockstep_contract::error_file::panic_text;
use tch::Tensor;
use torch_sys::C_tensor;

use crate::error::{Error, Result};
use crate::{OwnThread, ffi};

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
pub(crate) fn guarded<T, E: Display>(call: impl FnOnce() -> Result<T, E>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(panic) => Err(text_of(panic.as_ref())),
    }
}

pub(crate) fn drop_guarded<T>(value: T) {
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
