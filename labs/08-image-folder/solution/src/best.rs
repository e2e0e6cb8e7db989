//! Task 4: the best model is everyone's. Spot the bug.
//!
//! After each epoch every rank has validated its share of the photographs; shares differ in length, and one may be empty. A model
//! is kept if more of all photographs were told right than for the best one before; of equal ones the first stays. All ranks
//! hold the same model, so all must decide alike.

use anyhow::Result;
use c10d::{ProcessGroup, ReduceOp};
use tch::Tensor;

/// What is known of the best model so far.
#[derive(Clone, Copy)]
pub struct Best {
    /// The epoch after which it was found.
    pub epoch: u64,
    /// Its accuracy, from 0 to 1.
    pub accuracy: f64,
}

/// Takes the model of this epoch as the best, if it is. `right` of this rank's `photographs` were told right.
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
