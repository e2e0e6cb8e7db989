//! Named parameters: as a `VarStore` created them, and as an optimizer groups them.

use std::collections::{HashMap, HashSet};

use tch::nn::VarStore;
use tch::{Device, Kind, Tensor};

use super::error::{OptimError, Result};

/// The parameters that `vs` currently trains, with their names, in the order in which the model created them.
///
/// The order is part of the contract between ranks: DDP buckets, broadcasts and snapshots all follow it. A `VarStore`
/// keeps the order in one list and the names in a hash map; this joins the two by the address of the data.
///
/// Leaves out buffers, parameters that are frozen (`requires_grad` off), and parameters without elements, which have no address
/// and nothing to train. The tensors share their data and gradient with the model's.
pub fn named_parameters(vs: &VarStore) -> Vec<(String, Tensor)> {
    let names: HashMap<_, _> = vs.variables().into_iter().map(|(name, tensor)| (address(&tensor), name)).collect();
    let trained = vs.trainable_variables().into_iter().filter(|tensor| tensor.requires_grad() && tensor.numel() > 0);
    trained.filter_map(|tensor| Some((names.get(&address(&tensor))?.clone(), tensor))).collect()
}

/// Parameters that share a learning rate and a weight decay.
#[derive(Debug)]
pub struct ParamGroup {
    pub(super) params: Vec<(String, Tensor)>,
    pub(super) lr: Option<f64>,
    pub(super) weight_decay: Option<f64>,
}

impl ParamGroup {
    /// A group that takes every option from the optimizer's.
    pub fn new(params: Vec<(String, Tensor)>) -> Self {
        ParamGroup { params, lr: None, weight_decay: None }
    }

    /// The parameters with their names.
    pub fn params(&self) -> &[(String, Tensor)] {
        &self.params
    }

    /// Gives the group its own learning rate.
    pub fn lr(mut self, lr: f64) -> Self {
        self.lr = Some(lr);
        self
    }

    /// Gives the group its own weight decay.
    pub fn weight_decay(mut self, weight_decay: f64) -> Self {
        self.weight_decay = Some(weight_decay);
        self
    }
}

/// The gradients of those parameters that have one, by name.
pub(super) fn with_grad<'a>(params: impl Iterator<Item = (&'a String, &'a Tensor)>) -> Vec<(String, Tensor)> {
    let grads = params.map(|(name, param)| (name.clone(), param.grad()));
    grads.filter(|(_, grad)| grad.defined()).collect()
}

/// The batches that a kernel takes in one call: items whose tensors have one dtype and device, in the given order.
pub(crate) fn by_dtype_and_device<T>(items: Vec<T>, tensor: impl Fn(&T) -> &Tensor) -> Vec<Vec<T>> {
    let mut batches: Vec<((Kind, Device), Vec<T>)> = Vec::new();
    for item in items {
        let key = (tensor(&item).kind(), tensor(&item).device());
        match batches.iter_mut().find(|(there, _)| *there == key) {
            Some((_, batch)) => batch.push(item),
            None => batches.push((key, vec![item])),
        }
    }
    batches.into_iter().map(|(_, batch)| batch).collect()
}

/// PyTorch's checks on the parameters of all groups (`Optimizer.add_param_group`), and those of the fused kernels.
pub(super) fn check(groups: &[ParamGroup]) -> Result<()> {
    if let Some(group) = groups.iter().position(|group| group.params.is_empty()) {
        return Err(OptimError::NoParameters { group });
    }
    if groups.is_empty() {
        return Err(OptimError::NoParameters { group: 0 });
    }
    let (mut names, mut addresses) = (HashSet::new(), HashSet::new());
    for (name, tensor) in groups.iter().flat_map(|group| &group.params) {
        let refused = |why: &str| Err(OptimError::Parameter { name: name.clone(), why: why.to_owned() });
        if !tensor.is_leaf() {
            return refused("it is computed from other tensors (not a leaf)");
        }
        if !tensor.requires_grad() {
            return refused("it does not require a gradient; leave frozen parameters out");
        }
        if !matches!(tensor.kind(), Kind::Float | Kind::Double | Kind::Half | Kind::BFloat16) {
            return refused("its dtype is not a real floating-point type");
        }
        if !names.insert(name) {
            return refused("the name is given to two parameters");
        }
        if tensor.numel() > 0 && !addresses.insert(address(tensor)) {
            return refused("it is in the optimizer twice, under two names");
        }
    }
    Ok(())
}

fn address(tensor: &Tensor) -> usize {
    tensor.data_ptr() as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Device, nn};

    fn names(vs: &VarStore) -> Vec<String> {
        named_parameters(vs).into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn names_parameters_in_creation_order() {
        let vs = VarStore::new(Device::Cpu);
        // Enough names, in no alphabetical order, to expose a hash map's order.
        let made: Vec<String> = (0..40).map(|i| format!("layer{}", i * 17 % 40)).collect();
        for name in &made {
            let _made = vs.root().ones(name, &[3]);
        }
        assert_eq!(names(&vs), made);
    }

    #[test]
    fn leaves_out_buffers_and_frozen_parameters() {
        let vs = VarStore::new(Device::Cpu);
        let norm = nn::batch_norm1d(&vs.root() / "norm", 4, Default::default());
        nn::linear(&vs.root() / "out", 4, 2, Default::default());
        // tch's linear layer creates its bias first, unlike Python's.
        assert_eq!(names(&vs), ["norm.weight", "norm.bias", "out.bias", "out.weight"]);
        let _frozen = norm.ws.as_ref().expect("affine by default").set_requires_grad(false);
        assert_eq!(names(&vs), ["norm.bias", "out.bias", "out.weight"]);
    }

    #[test]
    fn shares_data_with_the_model_even_after_a_move_to_another_dtype() {
        let mut vs = VarStore::new(Device::Cpu);
        let weight = vs.root().zeros("weight", &[2]);
        vs.set_kind(Kind::Double);
        let mut named = named_parameters(&vs);
        let _filled = tch::no_grad(|| named[0].1.fill_(3.0));
        assert_eq!(Vec::<f64>::try_from(&weight).unwrap(), [3.0, 3.0]);
    }
}
