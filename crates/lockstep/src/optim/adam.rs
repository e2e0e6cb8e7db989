//! Adam and AdamW, `torch.optim.Adam` and `torch.optim.AdamW`.

use c10d::{AdamTensors, FusedAdam, fused_adam};
use tch::Tensor;

use super::engine::{FusedOptimizer, Rule, check_range, sealed};
use super::error::{OptimError, Result};
use super::options::{ADAM, ADAM_W, AdamOptions, AdamWOptions, GroupOptions};
use super::slot::Slot;

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

            fn update(&self, slots: &mut [(&mut Slot, Tensor)]) -> Result<()> {
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
fn gather(slots: &mut [(&mut Slot, Tensor)], names: &[&str]) -> Result<AdamTensors> {
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
