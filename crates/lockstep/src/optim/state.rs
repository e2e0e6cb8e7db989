//! The state of an optimizer as a value that can be saved: named tensors and a small serialisable description.
//!
//! Leaves out files. A snapshot writes the tensors as safetensors entries and the description into its header.

use std::collections::{BTreeSet, HashMap};

use serde::{Deserialize, Serialize};
use tch::Tensor;

use super::error::{OptimError, Result};
use super::options::GroupOptions;
use super::slot::Slot;

/// Everything that an optimizer's next step reads, except the parameters and their gradients.
///
/// That of [`Optimizer::state_dict`](super::Optimizer::state_dict) is a copy: later steps of its optimizer do not change it.
#[derive(Debug)]
pub struct State {
    meta: StateMeta,
    tensors: Vec<(String, Tensor)>,
}

/// The part of a [`State`] that is not tensors; for serde. Floats survive JSON when it is read with `float_roundtrip`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    pub(super) fn take(&mut self, kind: &str, slot: &Slot) -> Result<Tensor> {
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
