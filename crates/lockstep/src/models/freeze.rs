//! Which parameters are trained: freezing all but some, and counting those that are left.
//!
//! A frozen parameter is one whose `requires_grad` is off: [`named_parameters`] leaves it out, so that neither optimizer nor DDP
//! has it, and snapshots keep it with the rest. Leaves out telling from a file which parameters to freeze.

use tch::nn::VarStore;

use crate::optim::named_parameters;

/// Freezes every parameter but those of the modules that `trained` names (`fc`: `fc.weight`, `fc.0.bias` …, not `fc2.weight`), which
/// are thawed if they were frozen. Returns how many tensors are trained now: 0 says that no module is called so.
///
/// To be done before the optimizer and DDP are made, which take the parameters that are trained then.
///
/// As in PyTorch, freezing is about gradients alone: batch normalization in a training pass goes on normalizing with the batch's
/// statistics and updating its running ones, frozen or not, until the whole model is put into evaluation mode.
pub fn freeze_all_but(vs: &VarStore, trained: &[&str]) -> usize {
    let inside = |name: &str| trained.iter().any(|module| is_part_of(name, module));
    let parameters: Vec<usize> = vs.trainable_variables().iter().map(|tensor| tensor.data_ptr() as usize).collect();
    for (name, tensor) in vs.variables() {
        // Buffers are variables too, and have no gradient to switch.
        if parameters.contains(&(tensor.data_ptr() as usize)) {
            let _shared = tensor.set_requires_grad(inside(&name));
        }
    }
    named_parameters(vs).len()
}

/// The numbers that are trained now: elements of parameters that are not frozen.
pub fn count_trainable(vs: &VarStore) -> usize {
    named_parameters(vs).iter().map(|(_, tensor)| tensor.numel()).sum()
}

fn is_part_of(name: &str, module: &str) -> bool {
    name.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Device, nn};

    fn store() -> VarStore {
        let vs = VarStore::new(Device::Cpu);
        let root = vs.root();
        nn::batch_norm1d(&root / "norm", 4, Default::default());
        nn::linear(&root / "fc" / "0", 4, 3, Default::default());
        nn::linear(&root / "fc2", 3, 2, Default::default());
        vs
    }

    #[test]
    fn trains_only_the_modules_named() {
        let vs = store();
        assert_eq!(count_trainable(&vs), 4 + 4 + 12 + 3 + 6 + 2);
        assert_eq!(freeze_all_but(&vs, &["fc"]), 2);
        assert_eq!(count_trainable(&vs), 12 + 3);
        assert!(named_parameters(&vs).iter().all(|(name, _)| name.starts_with("fc.0.")));
        assert_eq!(freeze_all_but(&vs, &["fc2", "norm.bias"]), 3);
        assert_eq!(freeze_all_but(&vs, &["head"]), 0);
    }

    #[test]
    fn leaves_buffers_without_gradients() {
        let vs = store();
        freeze_all_but(&vs, &["norm"]);
        assert!(!vs.variables()["norm.running_mean"].requires_grad());
        assert_eq!(count_trainable(&vs), 8);
    }
}
