//! Automatic mixed precision: [`autocast`] and the [`GradScaler`] that small gradients in `Half` need.
//!
//! With `BFloat16`, whose range is that of `Float`, autocast is enough. `Half` has fewer bits for the exponent: gradients below
//! 6e-8 become 0. So the loss is multiplied by a large scale before backward, and the gradients are divided by it before the step.
//!
//! ```no_run
//! # use lockstep::optim::Optimizer;
//! # fn train(model: &lockstep::DistributedDataParallel<tch::nn::Sequential>, optimizer: &mut impl Optimizer, batches: &[(tch::Tensor, tch::Tensor)]) -> anyhow::Result<()> {
//! use lockstep::amp::{GradScaler, GradScalerOptions, autocast};
//! use tch::{Device, Kind};
//!
//! let mut scaler = GradScaler::new(GradScalerOptions::default())?;
//! for (inputs, targets) in batches {
//!     optimizer.zero_grad();
//!     let forward = || model.forward(inputs).map(|outputs| outputs.cross_entropy_for_logits(targets));
//!     let loss = autocast(Device::Cpu, Kind::Half, true, forward)??;
//!     model.backward(&scaler.scale(&loss)?)?;
//!     scaler.step(optimizer)?; // not taken if a gradient is infinite or NaN
//!     scaler.update()?;
//! }
//! let saved = scaler.state_dict(); // goes into the snapshot, next to the optimizer's state
//! # drop(saved); Ok(()) }
//! ```

use std::rc::Rc;

use c10d::{ProcessGroup, ReduceOp};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};

use crate::optim::{OptimError, Optimizer, by_dtype_and_device};

pub use c10d::autocast;

/// The value of `--precision`: the type of the forward pass where half of `Float` is enough. Parameters, gradients and the optimizer's state are
/// `Float` in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Precision {
    /// No mixed precision.
    #[default]
    Float32,
    /// Autocast with `BFloat16`: the range of `Float`, and 8 significant bits.
    Bfloat16,
    /// Autocast with `Half`, 11 significant bits, and a scaled loss.
    Float16,
}

impl Precision {
    /// Runs a forward pass and its loss on `device` in this precision.
    pub fn autocast<T>(self, device: Device, body: impl FnOnce() -> T) -> c10d::Result<T> {
        match self {
            Precision::Float32 => Ok(body()),
            Precision::Bfloat16 => autocast(device, Kind::BFloat16, true, body),
            Precision::Float16 => autocast(device, Kind::Half, true, body),
        }
    }

    /// The scaler that it needs: with PyTorch's defaults for `Float16`, otherwise one that is switched off.
    pub fn scaler(self) -> GradScaler {
        let options = GradScalerOptions { enabled: self == Precision::Float16, ..Default::default() };
        GradScaler::of(options)
    }
}

/// The options of a [`GradScaler`], with PyTorch's defaults.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GradScalerOptions {
    /// The first scale.
    pub init_scale: f32,
    /// What the scale is multiplied by after `growth_interval` steps in a row with finite gradients; above 1.
    pub growth_factor: f64,
    /// What it is multiplied by after a step with gradients that are not; below 1.
    pub backoff_factor: f64,
    /// A number of steps, above 0.
    pub growth_interval: u32,
    /// If it is false, the scale is 1 and every step is taken.
    pub enabled: bool,
}

impl Default for GradScalerOptions {
    fn default() -> Self {
        GradScalerOptions {
            init_scale: 65_536.0,
            growth_factor: 2.0,
            backoff_factor: 0.5,
            growth_interval: 2_000,
            enabled: true,
        }
    }
}

/// What a snapshot keeps of a [`GradScaler`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GradScalerState {
    /// The scale.
    pub scale: f32,
    /// Steps in a row with finite gradients since the scale changed.
    pub growth_tracker: u32,
    /// The factors and the interval.
    pub options: GradScalerOptions,
}

/// Why a [`GradScaler`] refused.
#[derive(Debug, thiserror::Error)]
pub enum AmpError {
    /// An option is outside its range.
    #[error("invalid {option} of the gradient scaler: {value}; it must be {must_be}")]
    Option {
        option: &'static str,
        value: f64,
        /// The valid range, as text.
        must_be: &'static str,
    },
    /// The calls came in another order than `unscale`, `step`, `update`.
    #[error(
        "{called} was called {when}; call scale, backward, then unscale if gradients are clipped, step, and update, once each"
    )]
    Order { called: &'static str, when: &'static str },
    /// No parameter of the optimizer has a gradient.
    #[error("there is no gradient to unscale; call backward on the scaled loss first")]
    NoGradients,
    /// A parameter has the type `Half`, and so has its gradient.
    #[error("cannot unscale the gradient of {name}, which is Half: keep the parameters in Float and use autocast")]
    Half { name: String },
    /// The ranks did not agree on whether the gradients are finite.
    #[error("failed to ask all ranks whether the gradients are finite")]
    Group(#[source] c10d::Error),
    /// libtorch failed.
    #[error("failed to unscale gradients")]
    Kernel(#[source] c10d::Error),
    /// libtorch failed to scale the loss.
    #[error("failed to scale the loss")]
    Scale(#[source] tch::TchError),
    /// The optimizer's step failed.
    #[error(transparent)]
    Step(#[from] OptimError),
}

/// What has happened since the last `update`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Since {
    Update,
    Unscale,
    Step,
}

/// Scales the loss, so that gradients in `Half` do not vanish; `torch.amp.GradScaler`.
///
/// Once a gradient is infinite or NaN, the step is left out and the scale is halved; after 2,000 good steps in a row it is doubled. Unlike
/// in PyTorch, a scaler is for one optimizer. Under DDP all ranks have the same gradients, so all find the same. If ranks have different
/// gradients, as with parameters that are divided among them, pass the [group](Self::across).
///
/// Source: `torch/amp/grad_scaler.py`; Micikevicius and others, "Mixed Precision Training" (2018).
#[derive(Debug)]
pub struct GradScaler {
    state: GradScalerState,
    group: Option<Rc<ProcessGroup>>,
    since: Since,
    found_inf: bool,
}

impl GradScaler {
    /// A scaler with these options.
    ///
    /// Errors: an option is outside its range.
    pub fn new(options: GradScalerOptions) -> Result<Self, AmpError> {
        check(&options)?;
        Ok(Self::of(options))
    }

    fn of(options: GradScalerOptions) -> Self {
        let state = GradScalerState { scale: options.init_scale, growth_tracker: 0, options };
        GradScaler { state, group: None, since: Since::Update, found_inf: false }
    }

    /// All ranks of `group` leave out a step if one of them must: `unscale` and `step` become collectives.
    #[must_use]
    pub fn across(mut self, group: Rc<ProcessGroup>) -> Self {
        self.group = Some(group);
        self
    }

    /// The scale now.
    pub fn get_scale(&self) -> f32 {
        if self.state.options.enabled { self.state.scale } else { 1.0 }
    }

    /// The loss times the scale, on its device.
    pub fn scale(&self, loss: &Tensor) -> Result<Tensor, AmpError> {
        if !self.state.options.enabled {
            return Ok(loss.shallow_clone());
        }
        let scale = Tensor::from(self.state.scale).f_to_device(loss.device());
        scale.and_then(|scale| loss.f_mul(&scale)).map_err(AmpError::Scale)
    }

    /// Divides the gradients by the scale, so that they can be clipped before the step. Without this call, [`step`](Self::step)
    /// divides them.
    ///
    /// Errors: it was called since the last `update`; no parameter has a gradient; a gradient is `Half`; a rank is missing.
    pub fn unscale(&mut self, optimizer: &(impl Optimizer + ?Sized)) -> Result<(), AmpError> {
        if !self.state.options.enabled {
            return Ok(());
        }
        match self.since {
            Since::Update => {}
            Since::Unscale => return Err(AmpError::Order { called: "unscale", when: "twice since the last update" }),
            Since::Step => return Err(AmpError::Order { called: "unscale", when: "after step" }),
        }
        self.found_inf = self.unscaled_are_infinite(optimizer)?;
        self.since = Since::Unscale;
        Ok(())
    }

    /// Takes the optimizer's step unless a gradient is infinite or NaN; returns true if it did.
    ///
    /// Errors: it was called since the last `update`; as [`unscale`](Self::unscale) and [`Optimizer::step`].
    pub fn step(&mut self, optimizer: &mut (impl Optimizer + ?Sized)) -> Result<bool, AmpError> {
        if self.state.options.enabled {
            match self.since {
                Since::Update => self.unscale(optimizer)?,
                Since::Unscale => {}
                Since::Step => return Err(AmpError::Order { called: "step", when: "twice since the last update" }),
            }
            self.since = Since::Step;
        }
        if self.found_inf {
            return Ok(false);
        }
        optimizer.step()?;
        Ok(true)
    }

    /// Changes the scale for the next step.
    pub fn update(&mut self) -> Result<(), AmpError> {
        let GradScalerState { scale, growth_tracker, options } = &mut self.state;
        if !options.enabled {
            return Ok(());
        }
        if self.since == Since::Update {
            return Err(AmpError::Order { called: "update", when: "before unscale or step" });
        }
        let times = |factor: f64| (f64::from(*scale) * factor) as f32;
        if self.found_inf {
            (*scale, *growth_tracker) = (times(options.backoff_factor).max(f32::MIN_POSITIVE), 0);
        } else if *growth_tracker + 1 < options.growth_interval {
            *growth_tracker += 1;
        } else {
            let grown = times(options.growth_factor);
            (*scale, *growth_tracker) = (if grown.is_finite() { grown } else { *scale }, 0);
        }
        (self.since, self.found_inf) = (Since::Update, false);
        Ok(())
    }

    /// What the next step reads.
    pub fn state_dict(&self) -> GradScalerState {
        self.state
    }

    /// Continues with a saved state: its scale, its count of good steps and its options, except `enabled`.
    ///
    /// Errors: a value is outside its range. The scaler is then unchanged.
    pub fn load_state_dict(&mut self, mut state: GradScalerState) -> Result<(), AmpError> {
        check(&state.options)?;
        check(&GradScalerOptions { init_scale: state.scale, ..state.options })?;
        state.options.enabled = self.state.options.enabled;
        (self.state, self.since, self.found_inf) = (state, Since::Update, false);
        Ok(())
    }

    /// Unscales the gradients; returns true if one of them, on any rank of the group, is not finite.
    fn unscaled_are_infinite(&self, optimizer: &(impl Optimizer + ?Sized)) -> Result<bool, AmpError> {
        let grads = optimizer.grads();
        if let Some((name, _)) = grads.iter().find(|(_, grad)| grad.kind() == Kind::Half) {
            return Err(AmpError::Half { name: name.clone() });
        }
        // In a group, this rank may have no part of any parameter with a gradient.
        if grads.is_empty() && self.group.is_none() {
            return Err(AmpError::NoGradients);
        }
        let grads = grads.into_iter().map(|(_, grad)| grad).collect();
        let inverse = (1.0 / f64::from(self.state.scale)) as f32;
        let mut found = 0.0_f32;
        for mut batch in by_dtype_and_device(grads, |grad| grad) {
            let device = batch[0].device();
            let one = |value: f32| Tensor::from(value).f_to_device(device).map_err(AmpError::Scale);
            let mut flag = one(0.0)?;
            c10d::unscale(&mut batch, &mut flag, &one(inverse)?).map_err(AmpError::Kernel)?;
            found = found.max(flag.double_value(&[]) as f32);
        }
        if let Some(group) = &self.group {
            let mut any = Tensor::from(found).f_to_device(group.device()).map_err(AmpError::Scale)?;
            group.all_reduce(&mut any, ReduceOp::Max).map_err(AmpError::Group)?;
            found = any.double_value(&[]) as f32;
        }
        Ok(found > 0.0)
    }
}

fn check(options: &GradScalerOptions) -> Result<(), AmpError> {
    let GradScalerOptions { init_scale, growth_factor, backoff_factor, growth_interval, enabled: _ } = *options;
    let init_scale = f64::from(init_scale);
    let rules = [
        ("init_scale", init_scale, init_scale.is_finite() && init_scale > 0.0, "finite and above 0"),
        ("growth_factor", growth_factor, growth_factor.is_finite() && growth_factor > 1.0, "finite and above 1"),
        ("backoff_factor", backoff_factor, backoff_factor > 0.0 && backoff_factor < 1.0, "between 0 and 1"),
        ("growth_interval", growth_interval.into(), growth_interval > 0, "1 or more"),
    ];
    match rules.into_iter().find(|(_, _, holds, _)| !holds) {
        None => Ok(()),
        Some((option, value, _, must_be)) => Err(AmpError::Option { option, value, must_be }),
    }
}
