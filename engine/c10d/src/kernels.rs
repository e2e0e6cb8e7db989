//! Kernels and settings of libtorch that tch does not export: determinism, vector instructions, channels-last memory, page-locked memory, a GPU's
//! peak memory, the number of threads for one thread's operations, mixed precision, and the fused optimizers.

use std::ffi::CStr;

use tch::{Device, Kind, Tensor};

use crate::error::{Error, Result};
use crate::ffi::{self, Status, pointers};

/// From now on every operation uses a deterministic kernel, or fails if there is none; `torch.use_deterministic_algorithms`. cuDNN no
/// longer chooses kernels by their times. The setting is for the whole process.
///
/// cuBLAS also needs the variable `CUBLAS_WORKSPACE_CONFIG=:4096:8` (or `:16:8`) before its first use, as libtorch's error then says.
/// As in PyTorch, `Tensor::empty` is filled with NaN meanwhile.
///
/// # Errors
/// libtorch's.
pub fn use_deterministic_algorithms(on: bool) -> Result<()> {
    // SAFETY: sets flags of libtorch's context, at any time.
    done("use deterministic algorithms", unsafe { ffi::lc_use_deterministic_algorithms(on) })
}

/// The vector instructions for which libtorch's kernels are chosen on this processor, as `AVX2`; `torch.backends.cpu.get_cpu_capability()`.
/// The variable `ATEN_CPU_CAPABILITY` limits them. Kernels for others may round differently.
pub fn cpu_capability() -> &'static str {
    // SAFETY: the shim returns a text that ends in a null byte and is never freed.
    let name = unsafe { CStr::from_ptr(ffi::lc_cpu_capability()) };
    name.to_str().unwrap_or_default()
}

/// Returns true if the tensor has four dimensions, and the second one is the last in memory: `torch.channels_last`.
pub fn is_channels_last(tensor: &Tensor) -> bool {
    // SAFETY: the tensor is borrowed for the call.
    unsafe { ffi::lc_is_channels_last(tensor.as_ptr()) }
}

/// The same values, of shape `[n, c, h, w]`, with the channels last in memory. Makes no copy if they are already.
///
/// # Errors
/// `BadArgument` for a tensor without four dimensions.
pub fn channels_last(tensor: &Tensor) -> Result<Tensor> {
    const CALL: &str = "put channels last";
    four_dimensions(CALL, tensor)?;
    // SAFETY: the tensor is borrowed for the call, and the result may be written.
    made(CALL, |out| unsafe { ffi::lc_channels_last(tensor.as_ptr(), out) })
}

/// As [`channels_last`], in place: parameters stay the same parameters, and gradients will have their layout.
///
/// # Errors
/// The errors of [`channels_last`].
pub fn to_channels_last(tensor: &mut Tensor) -> Result<()> {
    const CALL: &str = "put channels last in place";
    four_dimensions(CALL, tensor)?;
    // SAFETY: the tensor is borrowed exclusively for the call, and keeps its shape and type.
    done(CALL, unsafe { ffi::lc_to_channels_last(tensor.as_mut_ptr()) })
}

/// A copy in page-locked memory, from which a GPU can copy while the program goes on.
///
/// # Errors
/// libtorch's, for example where CUDA is not loaded.
pub fn pin_memory(tensor: &Tensor) -> Result<Tensor> {
    // SAFETY: the tensor is borrowed for the call, and the result may be written.
    made("lock memory for copies to a GPU", |out| unsafe { ffi::lc_pin_memory(tensor.as_ptr(), out) })
}

/// From now on the operations of the calling thread use no other thread, as in a worker of Python's data loader;
/// `torch.set_num_threads(1)` for this thread alone. `tch::set_num_threads` changes the number for all threads that start later, too.
///
/// # Errors
/// libtorch's.
pub fn use_one_thread_here() -> Result<()> {
    // SAFETY: changes settings of the calling thread.
    done("use one thread", unsafe { ffi::lc_one_thread_here() })
}

/// The peak memory of tensors on a GPU since the start or [`reset_peak_memory`], in bytes; `torch.cuda.max_memory_allocated`. `None` for
/// another device.
///
/// # Errors
/// libtorch's.
pub fn peak_memory(device: Device) -> Result<Option<u64>> {
    let Device::Cuda(index) = device else { return Ok(None) };
    let mut bytes = 0;
    // SAFETY: the result may be written.
    done("read the peak of a GPU's memory", unsafe { ffi::lc_peak_memory(number(index), &mut bytes) })?;
    Ok(Some(u64::try_from(bytes).unwrap_or(0)))
}

/// Resets the peak. Does nothing if the device is not a GPU.
///
/// # Errors
/// libtorch's.
pub fn reset_peak_memory(device: Device) -> Result<()> {
    let Device::Cuda(index) = device else { return Ok(()) };
    // SAFETY: takes a number, which libtorch checks.
    done("reset the peak of a GPU's memory", unsafe { ffi::lc_reset_peak_memory(number(index)) })
}

/// A machine has fewer GPUs than this limit; libtorch refuses a GPU that does not exist.
fn number(index: usize) -> i32 {
    i32::try_from(index).unwrap_or(i32::MAX)
}

fn four_dimensions(call: &str, tensor: &Tensor) -> Result<()> {
    let dimensions = if tensor.defined() { tensor.dim() } else { 0 };
    if dimensions == 4 {
        return Ok(());
    }
    Err(Error::bad_argument(
        call,
        format!("a tensor of {dimensions} dimensions has none: give one of shape [n, c, h, w]"),
    ))
}

fn made(call: &str, make: impl FnOnce(*mut *mut torch_sys::C_tensor) -> Status) -> Result<Tensor> {
    let made = ffi::made(make).map_err(|exception| Error::new(call, exception))?;
    // SAFETY: the shim made the tensor for its caller, who owns it from now on.
    Ok(unsafe { Tensor::from_ptr(made.as_ptr()) })
}

fn done(call: &str, status: Status) -> Result<()> {
    status.check().map_err(|exception| Error::new(call, exception))
}

// Mixed precision: autocast, and the kernel that unscales gradients.
//
// Not here: the scale and when it changes (`lockstep::amp::GradScaler`).

/// Runs `body` with `torch.autocast(device, dtype=kind, enabled=enabled)`: on tensors of this kind of device, operations that
/// are safe in half the precision take their inputs as `kind`, and those that need it take them as `Float`.
///
/// It is for the forward pass and the loss: backward runs each operation in the type of its forward pass. It applies to the
/// calling thread and may be nested. The previous state is restored when `body` ends, also by a panic.
///
/// # Errors
/// `BadArgument` for a kind other than `BFloat16` and `Half`, and for a device other than CPU and CUDA.
///
/// ```
/// use tch::{Device, Kind, Tensor};
/// let (a, b) = (Tensor::ones([2, 3], (Kind::Float, Device::Cpu)), Tensor::ones([3, 2], (Kind::Float, Device::Cpu)));
/// let product = c10d::autocast(Device::Cpu, Kind::BFloat16, true, || a.matmul(&b))?;
/// assert_eq!(product.kind(), Kind::BFloat16);
/// # Ok::<(), c10d::Error>(())
/// ```
pub fn autocast<T>(device: Device, kind: Kind, enabled: bool, body: impl FnOnce() -> T) -> Result<T> {
    let refuse = |why: String| Err(Error::bad_argument("autocast", why));
    let cuda = match device {
        Device::Cpu => false,
        Device::Cuda(_) => true,
        other => return refuse(format!("{other:?} is not supported; use Cpu or Cuda")),
    };
    let half = match kind {
        Kind::Half => true,
        Kind::BFloat16 => false,
        other => return refuse(format!("{other:?} is not supported; use BFloat16 or Half")),
    };
    let _within = Autocast::enter(cuda, half, enabled)?;
    Ok(body())
}

/// Enables autocast on the thread that created it, until it is dropped.
struct Autocast(ffi::AutocastState);

impl Autocast {
    fn enter(cuda: bool, half: bool, enabled: bool) -> Result<Self> {
        let mut before = ffi::AutocastState::default();
        // SAFETY: the shim writes the state before the call to `before`.
        let status = unsafe { ffi::lc_autocast_enter(cuda, half, enabled, &mut before) };
        status.check().map_err(|exception| Error::new("autocast", exception))?;
        Ok(Autocast(before))
    }
}

impl Drop for Autocast {
    fn drop(&mut self) {
        // SAFETY: the state was filled when this was made.
        let status = unsafe { ffi::lc_autocast_leave(&self.0) };
        let restored = status.check();
        debug_assert!(restored.is_ok(), "setting thread-local variables does not fail");
    }
}

/// Multiplies gradients by `inverse_scale` in place, and sets `found_inf` to 1 if one of them is infinite or NaN.
/// `_amp_foreach_non_finite_check_and_unscale_` in PyTorch.
///
/// The gradients have one dtype; `found_inf` and `inverse_scale` are one `Float` each, on the device of the gradients.
///
/// # Errors
/// `BadArgument` for other tensors.
pub fn unscale(grads: &mut [Tensor], found_inf: &mut Tensor, inverse_scale: &Tensor) -> Result<()> {
    let Some(first) = grads.first() else { return Ok(()) };
    let device = first.device();
    let alike = grads.iter().all(|grad| (grad.kind(), grad.device()) == (first.kind(), device));
    let single = [&*found_inf, inverse_scale]
        .iter()
        .all(|tensor| tensor.kind() == Kind::Float && tensor.numel() == 1 && tensor.device() == device);
    if !(alike && single) {
        let why = "gradients of one dtype and device are needed, with a flag and a scale of one Float on that device";
        return Err(Error::bad_argument("unscale", why));
    }
    let grads = pointers(grads);
    // SAFETY: the list has the given length, and all tensors outlive the call. The shim refuses gradients that the kernel would
    // misread.
    let status = unsafe { ffi::lc_unscale(grads.as_ptr(), grads.len(), found_inf.as_ptr(), inverse_scale.as_ptr()) };
    status.check().map_err(|exception| Error::new("unscale", exception))
}

// libtorch's fused optimizer kernels: one call updates many parameters in place.
//
// A call takes parameters of one dtype and device that are dense in memory, with gradients and state of the same
// memory layout. All other tensors are refused before any value is written. Autograd is disabled during the call.
//
// Not here: state and defaults (`lockstep::optim`), `grad_scale` and `found_inf` (mixed-precision scaling), and a
// learning rate in a tensor.

/// The options of one SGD step; see `torch/optim/sgd.py`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FusedSgd {
    /// Learning rate.
    pub lr: f64,
    /// The fraction of the last update that is kept; 0 means that there are no momentum buffers.
    pub momentum: f64,
    /// The fraction of each new gradient that is not added to the momentum buffer.
    pub dampening: f64,
    /// Added to the gradient as `weight_decay * parameter`.
    pub weight_decay: f64,
    /// Uses Nesterov momentum.
    pub nesterov: bool,
    /// Maximizes instead of minimizing.
    pub maximize: bool,
    /// In the first step the momentum buffers are not read: they are set to the gradients, without dampening.
    pub is_first_step: bool,
}

/// The options of one Adam or AdamW step; see `torch/optim/adam.py`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FusedAdam {
    /// Learning rate.
    pub lr: f64,
    /// Decay rates of the averages of the gradient and of its square.
    pub betas: (f64, f64),
    /// Added to the denominator.
    pub eps: f64,
    /// Adam adds `weight_decay * parameter` to the gradient, AdamW subtracts `lr * weight_decay * parameter` from the
    /// parameter.
    pub weight_decay: f64,
    /// Uses AdamW instead of Adam.
    pub decoupled: bool,
    /// Divides by the maximum of the squared averages so far.
    pub amsgrad: bool,
    /// Maximizes instead of minimizing.
    pub maximize: bool,
}

/// The tensors that an Adam step reads and writes: lists with one entry per parameter.
#[derive(Debug, Default)]
pub struct AdamTensors {
    /// The parameters, which the step updates.
    pub params: Vec<Tensor>,
    /// Their gradients.
    pub grads: Vec<Tensor>,
    /// The running averages of the gradients. The step updates these and the next two lists.
    pub exp_avgs: Vec<Tensor>,
    /// The running averages of the squared gradients.
    pub exp_avg_sqs: Vec<Tensor>,
    /// The maximum of the squared averages so far; empty without amsgrad.
    pub max_exp_avg_sqs: Vec<Tensor>,
    /// The number of steps of each parameter: float scalars on its device. The step increments them before it uses
    /// them.
    pub steps: Vec<Tensor>,
}

/// One SGD step in place. There is one momentum buffer per parameter, or none without momentum.
///
/// # Errors
/// `BadArgument` for lists of different lengths and for tensors that the kernel would misread; see the module's
/// documentation.
pub fn fused_sgd(params: &mut [Tensor], grads: &[Tensor], buffers: &mut [Tensor], options: &FusedSgd) -> Result<()> {
    let n_buffers = if options.momentum == 0.0 { 0 } else { params.len() };
    let lengths = [("gradients", grads.len(), params.len()), ("momentum buffers", buffers.len(), n_buffers)];
    check_lengths("fused SGD", &lengths)?;
    let (params, grads, buffers) = (pointers(params), pointers(grads), pointers(buffers));
    let FusedSgd { lr, momentum, dampening, weight_decay, nesterov, maximize, is_first_step } = *options;
    let step = ffi::SgdStep { lr, momentum, dampening, weight_decay, nesterov, maximize, is_first_step };
    // SAFETY: lists and options outlive the call, and the lists have the given lengths. The shim checks what the kernel
    // does not: that gradients and buffers have the memory layout of their parameter.
    let status = unsafe {
        ffi::lc_fused_sgd(params.as_ptr(), grads.as_ptr(), params.len(), buffers.as_ptr(), buffers.len(), &step)
    };
    status.check().map_err(|exception| Error::new("fused SGD", exception))
}

/// One step of Adam, or of AdamW if it is `decoupled`, in place.
///
/// # Errors
/// As [`fused_sgd`]; also for a step count that is not one float on its parameter's device.
pub fn fused_adam(tensors: &mut AdamTensors, options: &FusedAdam) -> Result<()> {
    let name = if options.decoupled { "fused AdamW" } else { "fused Adam" };
    let AdamTensors { params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps } = tensors;
    let n = params.len();
    let n_max = if options.amsgrad { n } else { 0 };
    let lengths = [
        ("gradients", grads.len(), n),
        ("averages", exp_avgs.len(), n),
        ("averages of squares", exp_avg_sqs.len(), n),
        ("largest averages of squares", max_exp_avg_sqs.len(), n_max),
        ("step counts", steps.len(), n),
    ];
    check_lengths(name, &lengths)?;
    let lists = [params, grads, exp_avgs, exp_avg_sqs, steps, max_exp_avg_sqs].map(|list| pointers(list));
    let [params, grads, averages, squares, steps, max_squares] = lists.each_ref().map(Vec::as_ptr);
    let FusedAdam { lr, betas: (beta1, beta2), eps, weight_decay, decoupled, amsgrad, maximize } = *options;
    let step = ffi::AdamStep { lr, beta1, beta2, eps, weight_decay, decoupled, amsgrad, maximize };
    // SAFETY: as in `fused_sgd`.
    let status = unsafe { ffi::lc_fused_adam(params, grads, averages, squares, steps, n, max_squares, n_max, &step) };
    status.check().map_err(|exception| Error::new(name, exception))
}

/// The name of a list, the number of its tensors and the required number.
fn check_lengths(operation: &str, lists: &[(&str, usize, usize)]) -> Result<()> {
    match lists.iter().find(|(_, given, wanted)| given != wanted) {
        None => Ok(()),
        Some((what, given, wanted)) => {
            Err(Error::bad_argument(operation, format!("{given} {what} were given, {wanted} are needed")))
        }
    }
}

#[cfg(test)]
mod tests {
    use tch::Kind;

    use super::*;

    #[test]
    fn deterministic_kernels_are_on_until_they_are_switched_off() {
        let fresh = || Tensor::empty([64], (Kind::Float, Device::Cpu)).isnan().all().int64_value(&[]) == 1;
        use_deterministic_algorithms(true).unwrap();
        let filled = fresh();
        use_deterministic_algorithms(false).unwrap();
        // PyTorch fills new memory with NaN in deterministic mode (torch.utils.deterministic.fill_uninitialized_memory).
        assert!(filled);
    }

    #[test]
    fn one_thread_of_a_program_may_compute_alone() {
        tch::set_num_threads(3);
        let (other, later) = std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                use_one_thread_here().unwrap();
                tch::get_num_threads()
            });
            let other = other.join().unwrap();
            (other, scope.spawn(tch::get_num_threads).join().unwrap())
        });
        assert_eq!((other, later, tch::get_num_threads()), (1, 3, 3));
    }

    #[test]
    fn channels_last_keeps_the_values_and_moves_them_in_memory() {
        let pictures = Tensor::arange(2 * 3 * 4 * 5, (Kind::Float, Device::Cpu)).reshape([2, 3, 4, 5]);
        assert!(!is_channels_last(&pictures));
        let moved = channels_last(&pictures).unwrap();
        assert_eq!((moved.stride(), is_channels_last(&moved)), (vec![60, 1, 15, 3], true));
        assert_eq!((moved.size(), &moved), (pictures.size(), &pictures));
        let mut same = moved.shallow_clone();
        let address = same.data_ptr();
        to_channels_last(&mut same).unwrap();
        assert_eq!(same.data_ptr(), address);
        let error = channels_last(&Tensor::zeros([2, 3], (Kind::Float, Device::Cpu))).unwrap_err();
        assert!(error.to_string().contains("2 dimensions"), "{error}");
    }

    #[test]
    fn a_parameter_stays_itself_and_its_gradient_gets_its_layout() {
        let weight = Tensor::ones([4, 3, 2, 2], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let held = weight.shallow_clone();
        to_channels_last(&mut weight.shallow_clone()).unwrap();
        assert!(is_channels_last(&held) && held.requires_grad() && held.is_leaf());
        let pictures = channels_last(&Tensor::ones([2, 3, 8, 8], (Kind::Float, Device::Cpu))).unwrap();
        crate::backward(&pictures.conv2d(&weight, None::<Tensor>, [1, 1], [0, 0], [1, 1], 1).sum(Kind::Float)).unwrap();
        assert!(is_channels_last(&held.grad()));
    }

    #[test]
    fn a_host_has_no_peak_and_without_cuda_locked_memory_is_an_error() {
        assert_eq!(peak_memory(Device::Cpu).unwrap(), None);
        reset_peak_memory(Device::Cpu).unwrap();
        if tch::Cuda::is_available() {
            println!("not verified here: the error of locked memory without a GPU");
        } else {
            pin_memory(&Tensor::ones([1], (Kind::Float, Device::Cpu))).unwrap_err();
        }
    }
}
