//! Answers to `freeze`: wrong ones, and unusual right ones.

use lockstep_answers::{edit, given};
use tch::Tensor;
use tch::nn::VarStore;

/// The given program: creates new tensors without gradients and drops them.
#[given]
pub fn detached() {}

/// Freezes the head, too.
pub fn everything(vs: &VarStore, _: &str) -> usize {
    vs.variables().values().for_each(|tensor| drop(tensor.set_requires_grad(false)));
    0
}

/// Trains all modules whose name begins with the head's.
#[edit(.is_some_and(|rest| rest.starts_with('.')) => .is_some())]
pub fn by_prefix() {}

/// Freezes the head instead of the rest.
#[edit(if !inside => if inside)]
pub fn the_wrong_way_round() {}

/// Counts all parameters that were created as trainable.
#[edit(.filter(|tensor| tensor.requires_grad()) => )]
pub fn counts_all() {}

/// Counts tensors.
#[edit(.map(Tensor::numel).sum() => .count())]
pub fn counts_tensors() {}

/// Trains any module of the head's name.
#[edit(name.strip_prefix(head).is_some_and(|rest| rest.starts_with('.')) => name.split('.').any(|part| part == head))]
pub fn any_part() {}

/// Freezes the weights of the backbone, and not its biases.
#[edit(if !inside(&name) => if !inside(&name) && name.ends_with(".weight"))]
pub fn weights_only() {}

/// Believes that `head.weight` and `head.bias` are all of the head.
#[edit(rest.starts_with('.') => [".weight", ".bias"].contains(&rest))]
pub fn own_tensors() {}

/// Right: freezes everything, then unfreezes the head.
pub fn thaws(vs: &VarStore, head: &str) -> usize {
    let trained: Vec<(String, Tensor)> =
        vs.variables().into_iter().filter(|(_, tensor)| tensor.requires_grad()).collect();
    for tensor in vs.trainable_variables() {
        let _shared = tensor.set_requires_grad(false);
    }
    let (mut count, inside) = (0, format!("{head}."));
    for (name, tensor) in trained {
        if name.starts_with(&inside) {
            count += tensor.set_requires_grad(true).numel();
        }
    }
    count
}

/// Makes the head's running means trainable.
#[edit(if !inside(&name) { let _shared = tensor.set_requires_grad(false); } => let _shared = tensor.set_requires_grad(inside(&name));)]
pub fn trains_buffers() {}

/// Counts all variables of the head.
#[edit(vs.trainable_variables().iter().filter(|tensor| tensor.requires_grad()).map(Tensor::numel).sum() => vs.variables().iter().filter(|(name, _)| inside(name)).map(|(_, tensor)| tensor.numel()).sum())]
pub fn counts_buffers() {}

/// Right: detaches in place.
#[edit(let _shared = tensor.set_requires_grad(false); => let _shared = tensor.shallow_clone().detach_();)]
pub fn detached_in_place() {}
