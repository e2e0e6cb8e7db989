//! The state of an optimizer: of each parameter while it trains, and as a value that can be saved: named tensors, and a small serialisable
//! description with each group's options.
//!
//! Leaves out files. A snapshot writes the tensors as safetensors entries and the description into its header.

use std::collections::{BTreeSet, HashMap};

use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};

use super::error::{OptimError, Result};

/// Everything that an optimizer's next step reads, except the parameters and their gradients.
///
/// The state that [`Optimizer::state_dict`](crate::optim::Optimizer::state_dict) returns is a copy: later steps of its optimizer do not change it.
#[derive(Debug)]
pub struct State {
    meta: StateMeta,
    tensors: Vec<(String, Tensor)>,
}

/// The part of a [`State`] that is not tensors; for serde. Floats survive JSON when it is read with `float_roundtrip`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StateMeta {
    /// The parameter groups, in order.
    pub groups: Vec<GroupMeta>,
}

/// One parameter group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupMeta {
    /// The optimizer's kind and its options in this group.
    #[serde(flatten)]
    pub options: GroupOptions,
    /// The group's parameters, in order.
    pub params: Vec<ParamMeta>,
}

/// One parameter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParamMeta {
    /// Its name.
    pub name: String,
    /// The number of updates it has had; 0 means that it has no tensors.
    pub step: u64,
}

impl State {
    /// Assembles a state from its saved parts; an optimizer checks it when loading.
    pub fn new(meta: StateMeta, tensors: Vec<(String, Tensor)>) -> Self {
        State { meta, tensors }
    }

    /// The description.
    pub fn meta(&self) -> &StateMeta {
        &self.meta
    }

    /// The tensors, named `<state>.<parameter>` (as `exp_avg.fc1.weight`), of the parameter's shape and dtype, ordered
    /// by group, parameter and state. They share the data of this state.
    pub fn tensors(&self) -> Vec<(String, Tensor)> {
        self.tensors.iter().map(|(name, tensor)| (name.clone(), tensor.shallow_clone())).collect()
    }

    /// The same state again; both share the data of its tensors.
    pub(super) fn shared(&self) -> Self {
        State { meta: self.meta.clone(), tensors: self.tensors() }
    }

    pub(super) fn copied(self) -> Self {
        let tensors = self.tensors.into_iter().map(|(name, tensor)| (name, tensor.copy())).collect();
        State { tensors, ..self }
    }

    pub(super) fn into_parts(self) -> (StateMeta, Tensors) {
        (self.meta, Tensors(self.tensors))
    }
}

impl GroupMeta {
    pub(super) fn steps(&self) -> HashMap<&str, u64> {
        self.params.iter().map(|param| (param.name.as_str(), param.step)).collect()
    }
}

/// The tensors of a state that no parameter has taken yet.
pub(super) struct Tensors(Vec<(String, Tensor)>);

impl Tensors {
    /// Takes the tensor `kind` of a parameter, copied to its device and layout.
    pub(super) fn take(&mut self, kind: &str, slot: &ParamState) -> Result<Tensor> {
        let name = tensor_name(kind, &slot.name);
        let Some(at) = self.0.iter().position(|(there, _)| *there == name) else {
            return Err(OptimError::Tensors { missing: vec![name], unexpected: Vec::new() });
        };
        let (name, saved) = self.0.swap_remove(at);
        if saved.size() != slot.param.size() {
            return Err(OptimError::Shape { name, saved: saved.size(), here: slot.param.size() });
        }
        if saved.kind() != slot.param.kind() {
            return Err(OptimError::Dtype { name, saved: saved.kind(), here: slot.param.kind() });
        }
        let copied = tch::no_grad(|| {
            let mut tensor = slot.param.f_empty_like()?;
            tensor.f_copy_(&saved).map(|()| tensor)
        });
        copied.map_err(OptimError::torch("copy saved optimizer state"))
    }

    pub(super) fn named(self) -> impl Iterator<Item = (String, Tensor)> {
        self.0.into_iter()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.0.iter().map(|(name, _)| name.clone()).collect()
    }
}

/// The name of a state tensor: `exp_avg.fc1.weight`.
pub(super) fn tensor_name(kind: &str, param: &str) -> String {
    format!("{kind}.{param}")
}

/// Returns an error unless a saved group and a group here have the same parameter names, in any order.
pub(super) fn check_names<'a>(group: usize, saved: &'a GroupMeta, here: impl Iterator<Item = &'a str>) -> Result<()> {
    let saved: BTreeSet<&str> = saved.params.iter().map(|param| param.name.as_str()).collect();
    let here: BTreeSet<&str> = here.collect();
    if saved == here {
        return Ok(());
    }
    let only = |left: &BTreeSet<&str>, right| left.difference(right).map(|&name| name.to_owned()).collect();
    Err(OptimError::Names { group, only_saved: only(&saved, &here), only_here: only(&here, &saved) })
}

/// One parameter with its state.
#[derive(Debug)]
pub struct ParamState {
    pub(super) name: String,
    pub(super) param: Tensor,
    /// How many updates the parameter has had.
    pub(super) step: u64,
    /// The tensors that the rule's `state_names` names, in that order; empty until the first update.
    pub(super) state: Vec<Tensor>,
    /// `step` in the form of the Adam kernels: a float scalar on the parameter's device, which they increment themselves.
    counter: Option<Tensor>,
}

impl ParamState {
    pub(super) fn new(name: String, param: Tensor) -> Self {
        ParamState { name, param, step: 0, state: Vec::new(), counter: None }
    }

    /// Creates the state tensors, zero and with the parameter's layout, unless they exist.
    pub(super) fn start(&mut self, names: &[&str]) -> Result<()> {
        if self.state.is_empty() {
            let zeros = names.iter().map(|_| tch::no_grad(|| self.param.f_zeros_like()));
            self.state = zeros.collect::<Result<_, _>>().map_err(OptimError::torch("allocate optimizer state"))?;
        }
        Ok(())
    }

    /// The step count so far, on the parameter's device.
    pub(super) fn counter(&mut self) -> Result<Tensor> {
        if self.counter.is_none() {
            let counter = Tensor::from(self.step as f32).f_to_device(self.param.device());
            self.counter = Some(counter.map_err(OptimError::torch("move a step count to the parameter's device"))?);
        }
        Ok(self.counter.get_or_insert_default().shallow_clone())
    }

    /// The fused kernels traverse memory in order: dtype, device and strides must be the parameter's.
    pub(super) fn check(&self, grad: &Tensor, takes_sparse: bool) -> Result<()> {
        let refused = |why: String| Err(OptimError::Gradient { name: self.name.clone(), why });
        if grad.is_sparse() {
            let why = "its gradient is sparse, which only SGD without momentum and weight decay takes; use that for a group of its \
                       own, or a layer with dense gradients";
            return if takes_sparse { Ok(()) } else { refused(why.to_owned()) };
        }
        let here = layout(&self.param);
        for (what, tensor) in std::iter::once(("gradient", grad)).chain(self.state.iter().map(|t| ("state", t))) {
            let there = layout(tensor);
            if there != here {
                return refused(format!(
                    "its {what} is {there:?} (dtype, device, strides), the parameter {here:?}; move and convert the \
                     model before the optimizer is built"
                ));
            }
        }
        Ok(())
    }
}

/// Dtype, device, and the strides of dimensions larger than 1 (a dimension of size 1 may have any stride, and autograd's do).
fn layout(tensor: &Tensor) -> (Kind, Device, Vec<i64>) {
    let dimensions = tensor.size().into_iter().zip(tensor.stride());
    (tensor.kind(), tensor.device(), dimensions.filter(|(size, _)| *size != 1).map(|(_, stride)| stride).collect())
}

/// PyTorch's names of the optimizers.
pub(super) const SGD: &str = "SGD";
pub(super) const ADAM: &str = "Adam";
pub(super) const ADAM_W: &str = "AdamW";

/// The options of `torch.optim.SGD`, with its defaults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SgdOptions {
    /// Learning rate; 1e-3.
    pub lr: f64,
    /// Momentum factor; 0, off.
    pub momentum: f64,
    /// Dampening of new gradients in the momentum buffer; 0.
    pub dampening: f64,
    /// Added to the gradient as `weight_decay * parameter` (an L2 penalty); 0.
    pub weight_decay: f64,
    /// Use Nesterov's momentum; off.
    pub nesterov: bool,
    /// Maximize instead of minimize; off.
    pub maximize: bool,
}

impl Default for SgdOptions {
    fn default() -> Self {
        SgdOptions { lr: 1e-3, momentum: 0.0, dampening: 0.0, weight_decay: 0.0, nesterov: false, maximize: false }
    }
}

/// The options of `torch.optim.Adam`, with its defaults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdamOptions {
    /// Learning rate; 1e-3.
    pub lr: f64,
    /// Decay rates of the two running averages; 0.9 and 0.999.
    pub betas: (f64, f64),
    /// Added to the denominator; 1e-8.
    pub eps: f64,
    /// Added to the gradient as `weight_decay * parameter` (an L2 penalty); 0.
    pub weight_decay: f64,
    /// Divide by the largest second average so far (Reddi et al., 2018); off.
    pub amsgrad: bool,
    /// Maximize instead of minimize; off.
    pub maximize: bool,
}

/// The options of `torch.optim.AdamW`, with its defaults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdamWOptions {
    /// Learning rate; 1e-3.
    pub lr: f64,
    /// Decay rates of the two running averages; 0.9 and 0.999.
    pub betas: (f64, f64),
    /// Added to the denominator; 1e-8.
    pub eps: f64,
    /// The fraction `lr * weight_decay` by which each step shrinks the parameter; 1e-2.
    pub weight_decay: f64,
    /// Divide by the largest second average so far (Reddi et al., 2018); off.
    pub amsgrad: bool,
    /// Maximize instead of minimize; off.
    pub maximize: bool,
}

impl Default for AdamOptions {
    fn default() -> Self {
        AdamOptions { lr: 1e-3, betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.0, amsgrad: false, maximize: false }
    }
}

impl Default for AdamWOptions {
    fn default() -> Self {
        let AdamOptions { lr, betas, eps, amsgrad, maximize, .. } = AdamOptions::default();
        AdamWOptions { lr, betas, eps, weight_decay: 1e-2, amsgrad, maximize }
    }
}

/// The options of a group, tagged with their optimizer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "optimizer", content = "options")]
pub enum GroupOptions {
    /// Options of `torch.optim.SGD`.
    #[serde(rename = "SGD")]
    Sgd(SgdOptions),
    /// Options of `torch.optim.Adam`.
    Adam(AdamOptions),
    /// Options of `torch.optim.AdamW`.
    AdamW(AdamWOptions),
}

impl GroupOptions {
    /// PyTorch's name of the optimizer.
    pub fn optimizer(&self) -> &'static str {
        match self {
            GroupOptions::Sgd(_) => SGD,
            GroupOptions::Adam(_) => ADAM,
            GroupOptions::AdamW(_) => ADAM_W,
        }
    }
}
