//! Task 1: freeze a backbone, and count. Spot the bug.
//!
//! In transfer learning, only the new head is trained at first. All other parameters keep their values: the backward pass no longer
//! computes their gradients, and the optimizer and DDP leave them out. Count the numbers that are still trained, because a network that you
//! forgot to freeze trains without any warning. Buffers, such as a batch norm's running mean, are variables that are not trained: do not
//! count those of the head.

use tch::Tensor;
use tch::nn::VarStore;

/// Freezes all parameters except those of the module `head` (`head.weight`, `head.0.bias`, not `header.weight`). Returns how many
/// numbers are still trained.
pub fn freeze(vs: &VarStore, head: &str) -> usize {
    let inside = |name: &str| name.strip_prefix(head).is_some_and(|rest| rest.starts_with('.'));
    // <answer>
    //~ for (name, tensor) in vs.variables() {
    //~     if !inside(&name) {
    //~         let _frozen = tensor.detach();
    //~     }
    //~ }
    //~ vs.trainable_variables().iter().map(Tensor::numel).sum()
    for (name, tensor) in vs.variables() {
        if !inside(&name) {
            let _shared = tensor.set_requires_grad(false);
        }
    }
    vs.trainable_variables().iter().filter(|tensor| tensor.requires_grad()).map(Tensor::numel).sum()
    // </answer>
}
