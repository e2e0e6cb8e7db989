//! Task 5: everyone's accuracy. Spot the bug.
//!
//! After an epoch each rank has answered its share of the test pictures, batch by batch; shares and last batches differ in length, and
//! a rank may have none. The accuracy that is printed, and by which a model is kept, is that of all pictures: right answers of
//! all ranks by pictures of all ranks, the same number everywhere.

use anyhow::Result;
use c10d::{ProcessGroup, ReduceOp};
use tch::{Kind, Tensor};

/// The accuracy over all ranks, from 0 to 1. A batch is a pair of predicted and right classes, both of shape `[n]`.
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
