//! Right: freezes everything, and thaws the head.

use tch::nn::VarStore;

pub fn freeze(vs: &VarStore, head: &str) -> usize {
    for tensor in vs.trainable_variables() {
        let _shared = tensor.set_requires_grad(false);
    }
    let (mut count, inside) = (0, format!("{head}."));
    for (name, tensor) in vs.variables() {
        if name.starts_with(&inside) {
            count += tensor.set_requires_grad(true).numel();
        }
    }
    count
}
