//! Trains all whose name begins with the head's.

use tch::Tensor;
use tch::nn::VarStore;

pub fn freeze(vs: &VarStore, head: &str) -> usize {
    for (name, tensor) in vs.variables() {
        if !name.starts_with(head) {
            let _shared = tensor.set_requires_grad(false);
        }
    }
    vs.trainable_variables().iter().filter(|tensor| tensor.requires_grad()).map(Tensor::numel).sum()
}
