//! Task 5: the accuracy of all ranks. Spot the bug.
//!
//! After an epoch, each rank has classified its share of the test pictures, batch by batch. Shares and last batches differ in
//! length, and a share may be empty. The accuracy that is printed, and that decides which model is kept, is the accuracy on all
//! pictures: the right predictions of all ranks divided by the pictures of all ranks. It is the same number on every rank.

use anyhow::Result;
use c10d::{ProcessGroup, ReduceOp};
use tch::{Kind, Tensor};

/// Returns the accuracy over all ranks, from 0 to 1. A batch is a pair of predicted and right classes, both of shape `[n]`.
pub fn accuracy(group: &ProcessGroup, batches: &[(Tensor, Tensor)]) -> Result<f64> {
    // <answer>
    //~ let mut sum = 0.0;
    //~ for (predicted, right) in batches {
    //~     let correct = predicted.eq_tensor(right).sum(Kind::Double).double_value(&[]);
    //~     sum += correct / right.size()[0] as f64;
    //~ }
    //~ Ok(sum / batches.len() as f64)
    let (mut correct, mut pictures) = (0.0, 0.0);
    for (predicted, right) in batches {
        correct += predicted.eq_tensor(right).sum(Kind::Double).double_value(&[]);
        pictures += right.size()[0] as f64;
    }
    let mut sums = Tensor::from_slice(&[correct, pictures]);
    group.all_reduce(&mut sums, ReduceOp::Sum)?;
    Ok(sums.double_value(&[0]) / sums.double_value(&[1]))
    // </answer>
}
