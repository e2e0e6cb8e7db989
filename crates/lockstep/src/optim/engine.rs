//! The shared part of all optimizers: groups of parameters, which of them step, and their state.
//!
//! Leaves out the arithmetic: each optimizer's options implement their rule (`rules.rs`), which calls a kernel.

use std::cell::Cell;

use tch::Tensor;

use super::error::{OptimError, Result};
use super::params::ParamGroup;
use super::state::{GroupMeta, ParamMeta, ParamState, State, StateMeta};
use super::{params, state};

/// The interface between a training loop and an optimizer.
pub trait Optimizer {
    /// Updates every parameter that has a gradient.
    ///
    /// A parameter whose gradient is undefined (it has not taken part in a backward pass) is skipped, as in PyTorch: its value,
    /// state and step count stay unchanged. Its state is created with its first gradient.
    ///
    /// Errors: a learning rate that is negative or not finite; a gradient whose dtype, device or strides are not the parameter's, or that
    /// is sparse, unless the optimizer is [`Sgd`](super::Sgd) without momentum and weight decay. These are detected before anything is
    /// written. A failure of libtorch itself may leave some parameters updated and others not.
    fn step(&mut self) -> Result<()>;

    /// Drops the gradients, so that the next backward pass starts without any, like PyTorch's `set_to_none=True`.
    ///
    /// A parameter that takes no part in the next backward pass then has no gradient, and the step skips it. Zeroing in place
    /// would let momentum and weight decay move it. A gradient that is a view into a communication bucket becomes one again in
    /// the next backward pass. Backward stores its new gradients instead of adding them to zeros, which saves reading and
    /// writing all of them once.
    ///
    /// # Panics
    /// libtorch fails, which means that memory ran out.
    fn zero_grad(&mut self);

    /// The gradients of its parameters, by the parameters' names; those without one are left out.
    fn grads(&self) -> Vec<(String, Tensor)>;

    /// The learning rate of the first group.
    fn lr(&self) -> f64;

    /// The learning rates of all groups, in order.
    fn group_lrs(&self) -> Vec<f64>;

    /// Sets the learning rate of all groups; [`step`](Self::step) refuses one that is negative or not finite.
    fn set_lr(&mut self, lr: f64);

    /// Sets the learning rate of one group, counted from 0.
    fn set_group_lr(&mut self, group: usize, lr: f64) -> Result<()>;

    /// A copy of everything that the next step reads, except the parameters and their gradients.
    ///
    /// Errors: the state is divided among ranks, and this one has not gathered it.
    ///
    /// # Panics
    /// libtorch cannot copy a tensor, which means that memory ran out or the device is lost.
    fn state_dict(&self) -> Result<State> {
        self.shared_state().map(State::copied)
    }

    /// Before a snapshot: gathers on rank 0 what the ranks have divided among them. A collective if they have; otherwise, as by
    /// default, it does nothing.
    fn gather_state(&self) -> Result<()> {
        Ok(())
    }

    /// As [`state_dict`](Self::state_dict), but without a copy: the next step changes its tensors.
    fn shared_state(&self) -> Result<State>;

    /// The bytes of the state tensors that this rank keeps, without its counts of steps.
    fn state_bytes(&self) -> u64 {
        let tensors = self.shared_state().map(|state| state.tensors()).unwrap_or_default();
        c10d::storage_bytes(tensors.iter().map(|(_, tensor)| tensor))
    }

    /// Loads a saved state: options (including the learning rates of each group), step counts and tensors.
    ///
    /// As in PyTorch, the saved options replace those given to the constructor. Parameters are matched by name within their
    /// group; the state of each is copied to the parameter's device.
    ///
    /// Errors: a state of another optimizer, another number of groups, other names, shapes or dtypes, missing or unused tensors, and
    /// options that the constructor would reject. The optimizer is then unchanged.
    fn load_state_dict(&mut self, state: State) -> Result<()>;
}

/// The options of one kind of optimizer: [`SgdOptions`](super::SgdOptions), [`AdamOptions`](super::AdamOptions) or
/// [`AdamWOptions`](super::AdamWOptions).
pub trait Rule: sealed::Steps {
    /// PyTorch's name of the optimizer.
    const NAME: &'static str;

    /// The learning rate.
    fn lr(&self) -> f64;
}

/// An optimizer whose step is one of libtorch's fused kernels; see [`Sgd`](super::Sgd), [`Adam`](super::Adam) and
/// [`AdamW`](super::AdamW).
#[derive(Debug)]
pub struct FusedOptimizer<R> {
    groups: Vec<Group<R>>,
}

#[derive(Debug)]
struct Group<R> {
    options: R,
    slots: Vec<ParamState>,
}

thread_local! {
    static LAST_LR: Cell<Option<f64>> = const { Cell::new(None) };
}

/// The learning rate of the first group in this thread's last step, for reports: so that every program's curves show the rate that
/// was used.
pub(crate) fn last_lr() -> Option<f64> {
    LAST_LR.get()
}

pub(super) mod sealed {
    //! The part of a rule that only this module's optimizers may implement.
    use super::{ParamState, Result, Tensor};
    use crate::optim::state::GroupOptions;

    /// Turns options into steps.
    pub trait Steps: Clone {
        /// Replaces the learning rate, unchecked.
        fn set_lr(&mut self, lr: f64);
        /// Replaces the weight decay, unchecked.
        fn set_weight_decay(&mut self, weight_decay: f64);
        /// The checks of PyTorch's constructor.
        fn check(&self) -> Result<()>;
        /// The names of a parameter's state tensors.
        fn state_names(&self) -> &'static [&'static str];
        /// Returns true if a gradient may be sparse.
        fn takes_sparse(&self) -> bool {
            false
        }
        /// Updates parameters of one dtype and device with their gradients.
        fn update(&self, slots: &mut [(&mut ParamState, Tensor)]) -> Result<()>;
        /// The options as they are saved.
        fn to_options(&self) -> GroupOptions;
        /// The options from a saved state, if they are this optimizer's.
        fn from_options(options: &GroupOptions) -> Option<&Self>;
    }
}

impl<R: Rule> FusedOptimizer<R> {
    /// An optimizer of one group of named parameters.
    ///
    /// Errors: options outside PyTorch's range; no parameters; a parameter that is not a leaf, requires no gradient, is not of a
    /// floating-point type, or occurs twice.
    pub fn new(params: Vec<(String, Tensor)>, options: R) -> Result<Self> {
        Self::with_groups(vec![ParamGroup::new(params)], options)
    }

    /// An optimizer of several groups, each of which may override the learning rate and the weight decay of `options`.
    pub fn with_groups(groups: Vec<ParamGroup>, options: R) -> Result<Self> {
        params::check(&groups)?;
        Self::of_checked(groups, &options)
    }

    /// An optimizer of groups whose parameters have been checked; a group may be empty.
    pub(super) fn of_checked(groups: Vec<ParamGroup>, options: &R) -> Result<Self> {
        options.check()?;
        let groups = groups.into_iter().map(|group| Group::new(group, options)).collect::<Result<_>>()?;
        Ok(FusedOptimizer { groups })
    }

    /// The state of this optimizer's parameters, without a copy.
    pub(super) fn local_state(&self) -> State {
        let tensors = self.groups.iter().flat_map(Group::tensors);
        let tensors = tensors.map(|(name, tensor)| (name, tensor.shallow_clone())).collect();
        State::new(StateMeta { groups: self.groups.iter().map(Group::meta).collect() }, tensors)
    }

    /// The names of the state tensors of a parameter in each group.
    pub(super) fn state_names(&self) -> impl Iterator<Item = &'static [&'static str]> {
        self.groups.iter().map(|group| group.options.state_names())
    }
}

impl<R: Rule> Optimizer for FusedOptimizer<R> {
    fn step(&mut self) -> Result<()> {
        let work = self.groups.iter_mut().map(Group::ready).collect::<Result<Vec<_>>>()?;
        for (options, slots) in work {
            for mut batch in params::by_dtype_and_device(slots, |(_, grad)| grad) {
                options.update(&mut batch)?;
                batch.iter_mut().for_each(|(slot, _)| slot.step += 1);
            }
        }
        LAST_LR.set(Some(self.lr()));
        Ok(())
    }

    fn zero_grad(&mut self) {
        for slot in self.groups.iter_mut().flat_map(|group| &mut group.slots) {
            // Every parameter is a defined leaf tensor: the constructor checks it.
            c10d::clear_grad(&mut slot.param).expect("libtorch forgets the gradient of a leaf");
        }
    }

    fn grads(&self) -> Vec<(String, Tensor)> {
        let slots = self.groups.iter().flat_map(|group| &group.slots);
        params::with_grad(slots.map(|slot| (&slot.name, &slot.param)))
    }

    fn lr(&self) -> f64 {
        self.groups[0].options.lr() // the constructor refuses an optimizer without groups
    }

    fn group_lrs(&self) -> Vec<f64> {
        self.groups.iter().map(|group| group.options.lr()).collect()
    }

    fn set_lr(&mut self, lr: f64) {
        self.groups.iter_mut().for_each(|group| group.options.set_lr(lr));
    }

    fn set_group_lr(&mut self, group: usize, lr: f64) -> Result<()> {
        let count = self.groups.len();
        self.groups.get_mut(group).ok_or(OptimError::NoSuchGroup { group, count })?.options.set_lr(lr);
        Ok(())
    }

    fn shared_state(&self) -> Result<State> {
        Ok(self.local_state())
    }

    fn load_state_dict(&mut self, state: State) -> Result<()> {
        let (saved, mut tensors) = state.into_parts();
        let options = saved.groups.iter().map(own_options).collect::<Result<Vec<R>>>()?;
        if saved.groups.len() != self.groups.len() {
            return Err(OptimError::GroupCount { saved: saved.groups.len(), here: self.groups.len() });
        }
        for (position, (group, saved)) in self.groups.iter().zip(&saved.groups).enumerate() {
            state::check_names(position, saved, group.slots.iter().map(|slot| slot.name.as_str()))?;
        }
        let pairs = self.groups.iter().zip(&saved.groups).zip(options);
        let loaded = pairs.map(|((group, saved), options)| group.restored(saved, options, &mut tensors));
        let loaded = loaded.collect::<Result<Vec<_>>>()?;
        if !tensors.is_empty() {
            return Err(OptimError::Tensors { missing: Vec::new(), unexpected: tensors.names() });
        }
        self.groups = loaded;
        Ok(())
    }
}

impl<R: Rule> Group<R> {
    fn new(group: ParamGroup, defaults: &R) -> Result<Self> {
        let mut options = defaults.clone();
        group.lr.into_iter().for_each(|lr| options.set_lr(lr));
        group.weight_decay.into_iter().for_each(|weight_decay| options.set_weight_decay(weight_decay));
        options.check()?;
        let slots = group.params.into_iter().map(|(name, param)| ParamState::new(name, param)).collect();
        Ok(Group { options, slots })
    }

    /// The parameters that have a gradient, with that gradient, all checked.
    fn ready(&mut self) -> Result<(&R, Vec<(&mut ParamState, Tensor)>)> {
        self.options.check()?;
        let with_grad = self.slots.iter_mut().map(|slot| {
            let grad = slot.param.grad();
            (slot, grad)
        });
        let ready: Vec<_> = with_grad.filter(|(_, grad)| grad.defined()).collect();
        let takes_sparse = self.options.takes_sparse();
        ready.iter().try_for_each(|(slot, grad)| slot.check(grad, takes_sparse))?;
        Ok((&self.options, ready))
    }

    fn meta(&self) -> GroupMeta {
        let params = self.slots.iter().map(|slot| ParamMeta { name: slot.name.clone(), step: slot.step }).collect();
        GroupMeta { options: self.options.to_options(), params }
    }

    fn tensors(&self) -> impl Iterator<Item = (String, &Tensor)> {
        let names = self.options.state_names();
        self.slots.iter().flat_map(move |slot| {
            names.iter().zip(&slot.state).map(|(name, tensor)| (state::tensor_name(name, &slot.name), tensor))
        })
    }

    /// This group's options and slots from `saved`; takes its tensors out of `tensors`. The names must have been checked.
    fn restored(&self, saved: &GroupMeta, options: R, tensors: &mut state::Tensors) -> Result<Self> {
        options.check()?;
        let steps = saved.steps();
        let slots = self.slots.iter().map(|slot| {
            let step = steps.get(slot.name.as_str()).copied().unwrap_or(0);
            let names = if step == 0 { &[] } else { options.state_names() };
            let mut restored = ParamState::new(slot.name.clone(), slot.param.shallow_clone());
            restored.step = step;
            restored.state = names.iter().map(|name| tensors.take(name, slot)).collect::<Result<_>>()?;
            Ok(restored)
        });
        Ok(Group { slots: slots.collect::<Result<_>>()?, options })
    }
}

/// Rejects values that are negative or not finite.
pub(super) fn check_range<R: Rule>(options: &[(&'static str, f64)]) -> Result<()> {
    match options.iter().find(|(_, value)| !(value.is_finite() && *value >= 0.0)) {
        None => Ok(()),
        Some(&(option, value)) => {
            Err(OptimError::Option { optimizer: R::NAME, option, value, must_be: "finite and not negative" })
        }
    }
}

/// The options of a saved group, if they are of this kind of optimizer.
fn own_options<R: Rule>(saved: &GroupMeta) -> Result<R> {
    let wrong = || OptimError::WrongOptimizer { saved: saved.options.optimizer(), here: R::NAME };
    R::from_options(&saved.options).cloned().ok_or_else(wrong)
}
