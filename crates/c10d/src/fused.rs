//! libtorch's fused optimizer kernels: one call updates many parameters in place.
//!
//! A call takes parameters of one dtype and device that are dense in memory, with gradients and state of the same
//! memory layout. All other tensors are refused before any value is written. Autograd is disabled during the call.
//!
//! Not here: state and defaults (`lockstep::optim`), `grad_scale` and `found_inf` (mixed-precision scaling), and a
//! learning rate in a tensor.

use tch::Tensor;

use crate::error::{Error, Result};
use crate::ffi::{self, pointers};

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
    /// The maximum of those so far; empty without amsgrad.
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
