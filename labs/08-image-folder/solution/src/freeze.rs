//! Task 1: freeze a backbone, and count. Spot the bug.
//!
//! In transfer learning only the new head is trained at first. All other parameters keep their values: no gradient is computed for
//! them, neither optimizer nor DDP has them. Whoever freezes should count the numbers that are left, since a network that is not
//! frozen trains without a complaint.

use tch::Tensor;
use tch::nn::VarStore;

/// Freezes all parameters but those of the module `head` (`head.weight`, `head.0.bias`, not `header.weight`), and says how many numbers
/// are trained now.
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
