//! Answers to `freeze`: wrong ones, and unusual right ones.

use tch::Tensor;
use tch::nn::VarStore;

/// The given program: creates new tensors without gradients and drops them.
pub fn detached(vs: &VarStore, head: &str) -> usize {
    let inside = |name: &str| name.strip_prefix(head).is_some_and(|rest| rest.starts_with('.'));
    for (name, tensor) in vs.variables() {
        if !inside(&name) {
            let _frozen = tensor.detach();
        }
    }
    vs.trainable_variables().iter().map(Tensor::numel).sum()
}

/// Freezes the head, too.
pub fn everything(vs: &VarStore, _: &str) -> usize {
    vs.variables().values().for_each(|tensor| drop(tensor.set_requires_grad(false)));
    0
}

/// Trains all modules whose name begins with the head's.
pub fn by_prefix(vs: &VarStore, head: &str) -> usize {
    for (name, tensor) in vs.variables() {
        if !name.starts_with(head) {
            let _shared = tensor.set_requires_grad(false);
        }
    }
    vs.trainable_variables().iter().filter(|tensor| tensor.requires_grad()).map(Tensor::numel).sum()
}

/// Freezes the head instead of the rest.
pub fn the_wrong_way_round(vs: &VarStore, head: &str) -> usize {
    let inside = |name: &str| name.strip_prefix(head).is_some_and(|rest| rest.starts_with('.'));
    for (name, tensor) in vs.variables() {
        if inside(&name) {
            let _shared = tensor.set_requires_grad(false);
        }
    }
    vs.trainable_variables().iter().filter(|tensor| tensor.requires_grad()).map(Tensor::numel).sum()
}

/// Counts all parameters that were created as trainable.
pub fn counts_all(vs: &VarStore, head: &str) -> usize {
    let inside = |name: &str| name.strip_prefix(head).is_some_and(|rest| rest.starts_with('.'));
    for (name, tensor) in vs.variables() {
        if !inside(&name) {
            let _shared = tensor.set_requires_grad(false);
        }
    }
    vs.trainable_variables().iter().map(Tensor::numel).sum()
}

/// Counts tensors.
pub fn counts_tensors(vs: &VarStore, head: &str) -> usize {
    let inside = |name: &str| name.strip_prefix(head).is_some_and(|rest| rest.starts_with('.'));
    for (name, tensor) in vs.variables() {
        if !inside(&name) {
            let _shared = tensor.set_requires_grad(false);
        }
    }
    vs.trainable_variables().iter().filter(|tensor| tensor.requires_grad()).count()
}

/// Trains any module of the head's name.
pub fn any_part(vs: &VarStore, head: &str) -> usize {
    for (name, tensor) in vs.variables() {
        if !name.split('.').any(|part| part == head) {
            let _shared = tensor.set_requires_grad(false);
        }
    }
    vs.trainable_variables().iter().filter(|tensor| tensor.requires_grad()).map(Tensor::numel).sum()
}

/// Freezes the weights of the backbone, and not its biases.
pub fn weights_only(vs: &VarStore, head: &str) -> usize {
    let inside = |name: &str| name.strip_prefix(head).is_some_and(|rest| rest.starts_with('.'));
    for (name, tensor) in vs.variables() {
        if !inside(&name) && name.ends_with(".weight") {
            let _shared = tensor.set_requires_grad(false);
        }
    }
    vs.trainable_variables().iter().filter(|tensor| tensor.requires_grad()).map(Tensor::numel).sum()
}

/// Takes `head.weight` and `head.bias` for all of the head.
pub fn own_tensors(vs: &VarStore, head: &str) -> usize {
    let own = [format!("{head}.weight"), format!("{head}.bias")];
    for (name, tensor) in vs.variables() {
        if !own.contains(&name) {
            let _shared = tensor.set_requires_grad(false);
        }
    }
    vs.trainable_variables().iter().filter(|tensor| tensor.requires_grad()).map(Tensor::numel).sum()
}

/// Right: freezes everything, then unfreezes the head.
pub fn thaws(vs: &VarStore, head: &str) -> usize {
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
