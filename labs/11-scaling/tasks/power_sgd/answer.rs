//! Task 6: two thin matrices.
//!
//! A layer's gradient is a matrix of n × m, and most of it often lies in few directions. PowerSGD sends two matrices of r columns whose
//! product is near the mean: left, n × r, and right, m × r. A rank adds what is left out to its next gradient: *error feedback*.

use anyhow::Result;
use c10d::{ProcessGroup, ReduceOp};
use tch::Tensor;

/// The memory of one rank for the gradient of one matrix, n × m, sent as matrices of r columns.
#[derive(Debug)]
pub struct Memory {
    /// `Double [m, r]`, the same on all ranks: the mean right matrix of the last step.
    pub right: Tensor,
    /// `Double [n, m]`: what the steps so far have left out of this rank's gradients.
    pub lost: Tensor,
}

/// One step of PowerSGD. What is due on this rank is its `gradient` (`Double [n, m]`) and what earlier steps have left out of it.
///
/// 1. left is the mean over all ranks of due · right, then made orthonormal: `Tensor::linalg_qr(&left, "reduced").0`.
/// 2. right is the mean over all ranks of dueᵀ · left, and the next step begins with it.
/// 3. The result is left · rightᵀ, the same on all ranks. What it leaves out of due is kept in the memory.
///
/// Returns the result, and the part that it leaves out on this rank: ‖due − result‖ / ‖due‖. Passes two tensors to the group, of (n + m)·r
/// numbers together.
pub fn power_sgd(group: &ProcessGroup, gradient: &Tensor, memory: &mut Memory) -> Result<(Tensor, f64)> {
    // <answer>
    //~ // This leaves nothing out, and sends all n·m numbers.
    //~ let mut sum = gradient.copy();
    //~ group.all_reduce(&mut sum, ReduceOp::Sum)?;
    //~ Ok((sum / group.size().get() as f64, 0.0))
    let mean = |tensor: Tensor| -> Result<Tensor> {
        let mut mean = tensor / group.size().get() as f64;
        group.all_reduce(&mut mean, ReduceOp::Sum)?;
        Ok(mean)
    };
    let due = gradient + &memory.lost;
    let left = Tensor::linalg_qr(&mean(due.matmul(&memory.right))?, "reduced").0;
    memory.right = mean(due.tr().matmul(&left))?;
    let result = left.matmul(&memory.right.tr());
    memory.lost = &due - &result;
    let part = (memory.lost.norm() / due.norm()).double_value(&[]);
    Ok((result, part))
    // </answer>
}
