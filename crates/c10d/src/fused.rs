//! libtorch's fused optimizer kernels: one call steps many parameters in place.
//!
//! A call takes parameters of one dtype and device, dense in memory, and gradients and state laid out as their parameter;
//! anything else is refused before a value is written. Autograd is off meanwhile.
//!
//! Leaves out state and defaults (`lockstep::optim`), `grad_scale` and `found_inf` (mixed-precision scaling) and a learning
//! rate held in a tensor.

use tch::Tensor;

use crate::error::{Error, Result};
use crate::ffi::{self, pointers};

/// The options of one SGD step; `torch/optim/sgd.py` says what each does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FusedSgd {
    /// Learning rate.
    pub lr: f64,
    /// Share of the last update that is kept; 0 means that there are no momentum buffers.
    pub momentum: f64,
    /// What is held back of each new gradient in the momentum buffer.
    pub dampening: f64,
    /// Added to the gradient as `weight_decay * parameter`.
    pub weight_decay: f64,
    /// Look ahead along the momentum.
    pub nesterov: bool,
    /// Climb instead of descend.
    pub maximize: bool,
    /// The momentum buffers are not read: they become the gradients, undampened.
    pub is_first_step: bool,
}

/// The options of one Adam or AdamW step; `torch/optim/adam.py` says what each does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FusedAdam {
    /// Learning rate.
    pub lr: f64,
    /// Decay rates of the averages of the gradient and of its square.
    pub betas: (f64, f64),
    /// Added to the denominator.
    pub eps: f64,
    /// Adam adds `weight_decay * parameter` to the gradient, AdamW takes `lr * weight_decay` off the parameter.
    pub weight_decay: f64,
    /// AdamW instead of Adam.
    pub decoupled: bool,
    /// Divide by the largest average of squares so far.
    pub amsgrad: bool,
    /// Climb instead of descend.
    pub maximize: bool,
}

/// What an Adam step reads and writes: lists with one entry a parameter.
#[derive(Debug, Default)]
pub struct AdamTensors {
    /// The parameters, which the step changes.
    pub params: Vec<Tensor>,
    /// Their gradients.
    pub grads: Vec<Tensor>,
    /// The running averages of the gradients, which the step changes, as it does the next two.
    pub exp_avgs: Vec<Tensor>,
    /// The running averages of the squares.
    pub exp_avg_sqs: Vec<Tensor>,
    /// The largest of those so far; empty without amsgrad.
    pub max_exp_avg_sqs: Vec<Tensor>,
    /// How many steps each parameter has had: float scalars on its device, which the step raises by one before it uses them.
    pub steps: Vec<Tensor>,
}

/// One SGD step in place. There is a momentum buffer a parameter, or none at all without momentum.
///
/// # Errors
/// `BadArgument` for lists of different lengths and for tensors that the kernel would misread: see above.
pub fn fused_sgd(params: &mut [Tensor], grads: &[Tensor], buffers: &mut [Tensor], options: &FusedSgd) -> Result<()> {
    let n_buffers = if options.momentum == 0.0 { 0 } else { params.len() };
    let lengths = [("gradients", grads.len(), params.len()), ("momentum buffers", buffers.len(), n_buffers)];
    check_lengths("fused SGD", &lengths)?;
    let (params, grads, buffers) = (pointers(params), pointers(grads), pointers(buffers));
    let FusedSgd { lr, momentum, dampening, weight_decay, nesterov, maximize, is_first_step } = *options;
    let step = ffi::SgdStep { lr, momentum, dampening, weight_decay, nesterov, maximize, is_first_step };
    // SAFETY: lists and options outlive the call, the lists have the lengths given, and the shim checks what the kernel does
    // not: that gradients and buffers cover the same memory layout as their parameter.
    let status = unsafe {
        ffi::lc_fused_sgd(params.as_ptr(), grads.as_ptr(), params.len(), buffers.as_ptr(), buffers.len(), &step)
    };
    status.check().map_err(|exception| Error::new("fused SGD", exception))
}

/// One step of Adam, or of AdamW if it is `decoupled`, in place.
///
/// # Errors
/// As [`fused_sgd`]; also a step count that is not one float on its parameter's device.
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

/// What a list is, how many tensors it has and how many it must have.
fn check_lengths(operation: &str, lists: &[(&str, usize, usize)]) -> Result<()> {
    match lists.iter().find(|(_, given, wanted)| given != wanted) {
        None => Ok(()),
        Some((what, given, wanted)) => {
            Err(Error::bad_argument(operation, format!("{given} {what} were given, {wanted} are needed")))
        }
    }
}
