//! Makes new tensors without gradients and drops them: the old ones are as they were. As it is given.

use tch::Tensor;
use tch::nn::VarStore;

pub fn freeze(vs: &VarStore, head: &str) -> usize {
    let inside = |name: &str| name.strip_prefix(head).is_some_and(|rest| rest.starts_with('.'));
    for (name, tensor) in vs.variables() {
        if !inside(&name) {
            let _frozen = tensor.detach();
        }
    }
    vs.trainable_variables().iter().map(Tensor::numel).sum()
}
