//! Chooses which parameters are trained: freezes all but some, and counts the rest.
//!
//! A frozen parameter is one whose `requires_grad` is off: [`named_parameters`] leaves it out, so that neither optimizer nor
//! DDP sees it, and snapshots save it like the others. Leaves out deciding which parameters to freeze.

use tch::nn::VarStore;

use crate::optim::named_parameters;

/// Freezes every parameter except those of the modules that `trained` names (`fc`: `fc.weight`, `fc.0.bias` …, not
/// `fc2.weight`), which are unfrozen if necessary. Returns the number of tensors that are trained now: 0 means that no module
/// has such a name.
///
/// Call this before creating the optimizer and DDP, which take the parameters that are trained at that time.
///
/// As in PyTorch, freezing affects only gradients: in a training pass, batch normalization still normalizes with the batch's
/// statistics and updates its running ones, frozen or not, until the whole model is put into evaluation mode.
pub fn freeze_all_but(vs: &VarStore, trained: &[&str]) -> usize {
    let inside = |name: &str| trained.iter().any(|module| is_part_of(name, module));
    let parameters: Vec<usize> = vs.trainable_variables().iter().map(|tensor| tensor.data_ptr() as usize).collect();
    for (name, tensor) in vs.variables() {
        // Buffers are variables too, but have no gradient to switch off.
        if parameters.contains(&(tensor.data_ptr() as usize)) {
            let _shared = tensor.set_requires_grad(inside(&name));
        }
    }
    named_parameters(vs).len()
}

/// The number of trained values: elements of parameters that are not frozen.
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
