//! Stochastic gradient descent, `torch.optim.SGD`.

use c10d::{FusedSgd, fused_sgd};
use tch::Tensor;

use super::engine::{FusedOptimizer, Rule, sealed};
use super::error::{OptimError, Result};
use super::options::{GroupOptions, SGD, SgdOptions};
use super::slot::Slot;

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
        super::engine::check_range::<Self>(&[
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
    fn update(&self, slots: &mut [(&mut Slot, Tensor)]) -> Result<()> {
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
    fn update_rows(&self, slot: &mut Slot, grad: &Tensor) -> Result<()> {
        let by = if self.maximize { self.lr } else { -self.lr };
        let step = || grad.f_mul_scalar(by).and_then(|change| slot.param.f_add_(&change).map(drop));
        tch::no_grad(step).map_err(OptimError::torch("step by a sparse gradient"))
    }

    fn fused(&self, is_first_step: bool) -> FusedSgd {
        let Self { lr, momentum, dampening, weight_decay, nesterov, maximize } = *self;
        FusedSgd { lr, momentum, dampening, weight_decay, nesterov, maximize, is_first_step }
    }
}
