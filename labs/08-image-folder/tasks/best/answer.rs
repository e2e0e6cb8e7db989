//! Task 4: the best model of all ranks. Spot the bug.
//!
//! After each epoch, every rank has validated its share of the photographs. Shares differ in length, and a share may be empty, but not all of
//! them. A model is kept if its accuracy over all photographs is higher than that of the best one before; of equal ones, the first
//! stays. If there is no best one yet, the model is kept, even with an accuracy of 0. All ranks hold the same model, so all must make the
//! same decision.

use anyhow::Result;
use c10d::{ProcessGroup, ReduceOp};
use tch::Tensor;

/// The best model so far.
#[derive(Clone, Copy)]
pub struct Best {
    /// The epoch after which it was found.
    pub epoch: u64,
    /// Its accuracy, from 0 to 1.
    pub accuracy: f64,
}

/// Updates `best` if the model of this epoch is better. This rank predicted `right` of its `photographs` correctly.
pub fn best(group: &ProcessGroup, best: &mut Option<Best>, epoch: u64, right: u64, photographs: u64) -> Result<()> {
    // <answer>
    //~ let accuracy = right as f64 / photographs as f64;
    //~ if best.is_none_or(|best| accuracy > best.accuracy) {
    //~     *best = Some(Best { epoch, accuracy });
    //~ }
    let mut sums = Tensor::from_slice(&[right as f64, photographs as f64]);
    group.all_reduce(&mut sums, ReduceOp::Sum)?;
    let accuracy = sums.double_value(&[0]) / sums.double_value(&[1]);
    if best.is_none_or(|best| accuracy > best.accuracy) {
        *best = Some(Best { epoch, accuracy });
    }
    // </answer>
    Ok(())
}
