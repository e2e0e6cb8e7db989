//! What PowerSGD remembers of a gradient from one step to the next. You do not change this file.

use tch::Tensor;

/// The memory of one rank for the gradient of one matrix, n × m, sent as matrices of r columns.
#[derive(Debug)]
pub struct Memory {
    /// `Double [m, r]`, the same on all ranks: the mean right matrix of the last step.
    pub right: Tensor,
    /// `Double [n, m]`: what the steps so far have left out of this rank's gradients.
    pub lost: Tensor,
}
