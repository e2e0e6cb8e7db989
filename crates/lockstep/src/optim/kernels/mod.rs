//! The one door to libtorch's fused optimizer kernels: `_fused_sgd_`, `_fused_adam_`, `_fused_adamw_`.
//!
//! tch 0.24 binds none of them (nor any `_foreach_*` operator, nor the `alpha` of `add_` that the plain loop needs for
//! equal bits), because its generator leaves out operators that return nothing. They are reached as any operator can
//! be without C++: through TorchScript, whose interpreter calls every operator that libtorch has registered. The source
//! is `fused.py` beside this file (the form in which `torch.jit.save` writes code), packed in memory by [`archive`].
//!
//! What the kernels assume and do not check is the caller's duty (see `super::engine`): one device and one dtype a
//! call, and gradients and state laid out in memory exactly as their parameter, since the CPU kernels ignore strides.
//!
//! Left out: `grad_scale` and `found_inf` (mixed-precision scaling) and a learning rate held in a tensor.

mod archive;

use tch::{CModule, IValue, TchError, Tensor};

use super::adam::AdamOptions;
use super::sgd::SgdOptions;

const SOURCE: &str = include_str!("fused.py");

/// The compiled kernels; about a millisecond to make, cheap to call.
#[derive(Debug)]
pub struct Kernels(CModule);

/// What an Adam step reads and writes: six lists of one length (`max_exp_avg_sqs` empty without amsgrad).
#[derive(Default)]
pub(super) struct AdamTensors {
    pub(super) params: Vec<Tensor>,
    pub(super) grads: Vec<Tensor>,
    pub(super) exp_avgs: Vec<Tensor>,
    pub(super) exp_avg_sqs: Vec<Tensor>,
    pub(super) max_exp_avg_sqs: Vec<Tensor>,
    /// Float scalars on the parameters' device, raised by one here before they are used.
    pub(super) steps: Vec<Tensor>,
}

impl Kernels {
    /// Compiles the source.
    pub(super) fn load() -> Result<Self, TchError> {
        CModule::load_data(&mut archive::torchscript(SOURCE).as_slice()).map(Kernels)
    }

    /// One SGD step in place. `momentum_buffers` is empty without momentum; in a first step its contents are not read.
    pub(super) fn sgd(
        &self,
        params: Vec<Tensor>,
        grads: Vec<Tensor>,
        momentum_buffers: Vec<Tensor>,
        is_first_step: bool,
        o: &SgdOptions,
    ) -> Result<(), TchError> {
        let mut arguments: Vec<IValue> = [params, grads, momentum_buffers].map(IValue::from).into();
        arguments.extend([o.lr, o.momentum, o.dampening, o.weight_decay].map(IValue::from));
        arguments.extend([o.nesterov, o.maximize, is_first_step].map(IValue::from));
        self.call("sgd", &arguments)
    }

    /// One Adam step in place, or AdamW's where the weight decay is `decoupled`.
    pub(super) fn adam(&self, t: AdamTensors, decoupled: bool, o: &AdamOptions) -> Result<(), TchError> {
        let lists = [t.params, t.grads, t.exp_avgs, t.exp_avg_sqs, t.max_exp_avg_sqs, t.steps];
        let mut arguments: Vec<IValue> = lists.map(IValue::from).into();
        arguments.extend([o.lr, o.betas.0, o.betas.1, o.eps, o.weight_decay].map(IValue::from));
        arguments.extend([o.amsgrad, o.maximize].map(IValue::from));
        self.call(if decoupled { "adamw" } else { "adam" }, &arguments)
    }

    /// Autograd is off meanwhile: parameters are leaves, which may not be written in place under it.
    fn call(&self, kernel: &str, arguments: &[IValue]) -> Result<(), TchError> {
        let _off = tch::no_grad_guard();
        self.0.method_is(kernel, arguments).map(drop)
    }
}
