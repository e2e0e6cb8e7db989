//! The rules of the optimizers: stochastic gradient descent (`torch.optim.SGD`), Adam and AdamW.

use c10d::{AdamTensors, FusedAdam, FusedSgd, fused_adam, fused_sgd};
use tch::Tensor;

use super::engine::{FusedOptimizer, Rule, check_range, sealed};
use super::error::{OptimError, Result};
use super::state::{ADAM, ADAM_W, AdamOptions, AdamWOptions, GroupOptions, ParamState, SGD, SgdOptions};

/// Stochastic gradient descent with momentum, weight decay and Nesterov's variant.
///
/// The state of a parameter is one tensor, `momentum_buffer`, and exists only with momentum. The first buffer is the
/// parameter's first gradient without dampening, as in PyTorch.
///
/// Source: `torch/optim/sgd.py`; Nesterov's form from Sutskever et al., "On the importance of initialization and
/// momentum in deep learning" (2013).
pub type Sgd = FusedOptimizer<SgdOptions>;

impl Rule for SgdOptions {
    const NAME: &'static str = SGD;

    fn lr(&self) -> f64 {
        self.lr
    }
}

impl sealed::Steps for SgdOptions {
    fn set_lr(&mut self, lr: f64) {
        self.lr = lr;
    }

    fn set_weight_decay(&mut self, weight_decay: f64) {
        self.weight_decay = weight_decay;
    }

    fn check(&self) -> Result<()> {
        crate::optim::engine::check_range::<Self>(&[
            ("lr", self.lr),
            ("momentum", self.momentum),
            ("weight_decay", self.weight_decay),
        ])?;
        if !self.dampening.is_finite() {
            let (option, value) = ("dampening", self.dampening);
            return Err(OptimError::Option { optimizer: Self::NAME, option, value, must_be: "finite" });
        }
        if self.nesterov && (self.momentum <= 0.0 || self.dampening != 0.0) {
            return Err(OptimError::Nesterov { momentum: self.momentum, dampening: self.dampening });
        }
        Ok(())
    }

    fn state_names(&self) -> &'static [&'static str] {
        if self.momentum == 0.0 { &[] } else { &["momentum_buffer"] }
    }

    fn takes_sparse(&self) -> bool {
        self.momentum == 0.0 && self.weight_decay == 0.0
    }

    /// The kernel takes one `is_first_step` for all its parameters: those without a buffer get a separate call.
    fn update(&self, slots: &mut [(&mut ParamState, Tensor)]) -> Result<()> {
        let (sparse, dense): (Vec<_>, Vec<_>) = slots.iter_mut().partition(|(_, grad)| grad.is_sparse());
        sparse.into_iter().try_for_each(|(slot, grad)| self.update_rows(slot, grad))?;
        let (mut first, mut later): (Vec<_>, Vec<_>) =
            dense.into_iter().partition(|(slot, _)| slot.state.is_empty() && self.momentum != 0.0);
        for (batch, is_first_step) in [(&mut first, true), (&mut later, false)] {
            if batch.is_empty() {
                continue;
            }
            let mut params: Vec<Tensor> = batch.iter().map(|(slot, _)| slot.param.shallow_clone()).collect();
            let grads: Vec<Tensor> = batch.iter().map(|(_, grad)| grad.shallow_clone()).collect();
            batch.iter_mut().try_for_each(|(slot, _)| slot.start(self.state_names()))?;
            let buffers = batch.iter().flat_map(|(slot, _)| slot.state.first());
            let mut buffers: Vec<Tensor> = buffers.map(Tensor::shallow_clone).collect();
            fused_sgd(&mut params, &grads, &mut buffers, &self.fused(is_first_step)).map_err(OptimError::Kernel)?;
        }
        Ok(())
    }

    fn to_options(&self) -> GroupOptions {
        GroupOptions::Sgd(self.clone())
    }

    fn from_options(options: &GroupOptions) -> Option<&Self> {
        match options {
            GroupOptions::Sgd(options) => Some(options),
            _ => None,
        }
    }
}

impl SgdOptions {
    /// A step by a sparse gradient changes only the rows that it has.
    fn update_rows(&self, slot: &mut ParamState, grad: &Tensor) -> Result<()> {
        let by = if self.maximize { self.lr } else { -self.lr };
        let step = || grad.f_mul_scalar(by).and_then(|change| slot.param.f_add_(&change).map(drop));
        tch::no_grad(step).map_err(OptimError::torch("step by a sparse gradient"))
    }

    fn fused(&self, is_first_step: bool) -> FusedSgd {
        let Self { lr, momentum, dampening, weight_decay, nesterov, maximize } = *self;
        FusedSgd { lr, momentum, dampening, weight_decay, nesterov, maximize, is_first_step }
    }
}

/// Adam: steps scaled by running averages of the gradient and of its square.
///
/// The state of a parameter is its step count and the tensors `exp_avg`, `exp_avg_sq` and, with amsgrad,
/// `max_exp_avg_sq`.
///
/// Source: `torch/optim/adam.py`; Kingma and Ba, "Adam: A Method for Stochastic Optimization" (2014).
pub type Adam = FusedOptimizer<AdamOptions>;

/// Adam with decoupled weight decay: the decay shrinks the parameter and does not enter the averages.
///
/// State as [`Adam`]'s.
///
/// Source: `torch/optim/adamw.py`; Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (2017).
pub type AdamW = FusedOptimizer<AdamWOptions>;

/// The two differ only in name and kernel.
macro_rules! adam_rule {
    ($options:ident, $name:ident, $variant:ident, decoupled: $decoupled:literal) => {
        impl Rule for $options {
            const NAME: &'static str = $name;

            fn lr(&self) -> f64 {
                self.lr
            }
        }

        impl sealed::Steps for $options {
            fn set_lr(&mut self, lr: f64) {
                self.lr = lr;
            }

            fn set_weight_decay(&mut self, weight_decay: f64) {
                self.weight_decay = weight_decay;
            }

            fn check(&self) -> Result<()> {
                check_range::<Self>(&[("lr", self.lr), ("eps", self.eps), ("weight_decay", self.weight_decay)])?;
                check_betas(Self::NAME, self.betas)
            }

            fn state_names(&self) -> &'static [&'static str] {
                state_names(self.amsgrad)
            }

            fn update(&self, slots: &mut [(&mut ParamState, Tensor)]) -> Result<()> {
                let Self { lr, betas, eps, weight_decay, amsgrad, maximize } = *self;
                let options = FusedAdam { lr, betas, eps, weight_decay, decoupled: $decoupled, amsgrad, maximize };
                let mut tensors = gather(slots, state_names(amsgrad))?;
                fused_adam(&mut tensors, &options).map_err(OptimError::Kernel)
            }

            fn to_options(&self) -> GroupOptions {
                GroupOptions::$variant(self.clone())
            }

            fn from_options(options: &GroupOptions) -> Option<&Self> {
                match options {
                    GroupOptions::$variant(options) => Some(options),
                    _ => None,
                }
            }
        }
    };
}

adam_rule!(AdamOptions, ADAM, Adam, decoupled: false);
adam_rule!(AdamWOptions, ADAM_W, AdamW, decoupled: true);

fn state_names(amsgrad: bool) -> &'static [&'static str] {
    if amsgrad { &["exp_avg", "exp_avg_sq", "max_exp_avg_sq"] } else { &["exp_avg", "exp_avg_sq"] }
}

fn check_betas(optimizer: &'static str, betas: (f64, f64)) -> Result<()> {
    for (option, value) in [("betas.0", betas.0), ("betas.1", betas.1)] {
        if !(0.0..1.0).contains(&value) {
            return Err(OptimError::Option { optimizer, option, value, must_be: "at least 0 and less than 1" });
        }
    }
    Ok(())
}

/// The kernel's lists; a parameter at its first step gets averages of zero.
fn gather(slots: &mut [(&mut ParamState, Tensor)], names: &[&str]) -> Result<AdamTensors> {
    let mut lists = AdamTensors::default();
    for (slot, grad) in slots {
        slot.start(names)?;
        lists.params.push(slot.param.shallow_clone());
        lists.grads.push(grad.shallow_clone());
        lists.steps.push(slot.counter()?);
        let averages = [&mut lists.exp_avgs, &mut lists.exp_avg_sqs, &mut lists.max_exp_avg_sqs];
        averages.into_iter().zip(&slot.state).for_each(|(list, tensor)| list.push(tensor.shallow_clone()));
    }
    Ok(lists)
}
