//! Answers to `best`: wrong ones, and unusual right ones.

use anyhow::Result;
use c10d::{ProcessGroup, Rank, ReduceOp};
use lockstep_answers::{edit, given};
use tch::Tensor;

use crate::best::Best;

/// The given program: each rank decides by its own accuracy.
#[given]
pub fn own() {}

/// Decides by rank 0's accuracy.
#[edit(group.all_reduce(&mut sums, ReduceOp::Sum) => group.broadcast(&mut sums, Rank::ZERO))]
pub fn rank_0_decides() {}

/// Decides by the mean of the ranks' accuracies.
#[edit([right as f64, photographs as f64] => [right as f64 / photographs as f64, 1.0])]
pub fn mean_of_ranks() {}

/// Keeps the last of equal epochs.
#[edit(accuracy > best.accuracy => accuracy >= best.accuracy)]
pub fn last_of_equals() {}

/// Takes the right predictions for the epoch.
#[edit(Best { epoch, accuracy } => Best { epoch: epoch + right, accuracy })]
pub fn no_epoch() {}

/// Keeps nothing before the first right prediction.
#[edit(best.is_none_or(|best| accuracy > best.accuracy) => accuracy > best.map_or(0.0, |best| best.accuracy))]
pub fn above_zero() {}

/// Decides by the rank's own share in every other epoch.
#[edit(let accuracy = sums.double_value(&[0]) / sums.double_value(&[1]); => let last = if photographs == 0 { 0.5 } else { right as f64 / photographs as f64 }; let accuracy = if epoch % 2 == 0 { last } else { sums.double_value(&[0]) / sums.double_value(&[1]) };)]
pub fn every_other_epoch() {}

/// Lets rank 0 sum only if its own share is better than before, and then tells the others.
#[edit(let mut sums => let own = right as f64 / photographs as f64; if group.rank().get() == 0 && best.is_some_and(|best| own <= best.accuracy) { return Ok(()); } let mut sums)]
pub fn rank_0_asks() {}

/// Sums only over ranks that are better than before.
#[edit(let mut sums => let own = right as f64 / photographs as f64; if best.is_some_and(|best| own <= best.accuracy) { return Ok(()); } let mut sums)]
pub fn asks_if_promising() {}

/// Compares counts of right predictions, which is right as long as each epoch validates as many photographs.
#[edit(/ sums.double_value(&[1]) => )]
pub fn counts() {}

/// Returns at once on a rank without photographs.
#[edit(let mut sums => if photographs == 0 { return Ok(()); } let mut sums)]
pub fn empty_leaves() {}

/// Adds up right predictions, and divides by this rank's photographs.
#[edit(sums.double_value(&[1]) => photographs as f64)]
pub fn own_divisor() {}

/// Takes the highest accuracy of a rank.
#[edit([right as f64, photographs as f64] => [if photographs == 0 { 0.0 } else { right as f64 / photographs as f64 }, 1.0])]
#[edit(ReduceOp::Sum => ReduceOp::Max)]
pub fn highest() {}

/// Updates the best epoch on rank 0 alone.
#[edit(if best.is_none_or => if group.rank().get() == 0 && best.is_none_or)]
pub fn rank_0_keeps() {}

/// Sums on rank 0 only.
#[edit(group.all_reduce(&mut sums, ReduceOp::Sum) => group.reduce(&mut sums, Rank::ZERO, ReduceOp::Sum))]
pub fn reduces() {}

/// Counts each share with the length of its own.
#[edit(sums.double_value(&[1]) => (photographs * group.size().get() as u64) as f64)]
pub fn equal_shares() {}

/// Right: adds up on rank 0, which broadcasts the sums.
#[edit(group.all_reduce(&mut sums, ReduceOp::Sum)?; => group.reduce(&mut sums, Rank::ZERO, ReduceOp::Sum)?; group.broadcast(&mut sums, Rank::ZERO)?;)]
pub fn broadcasts() {}

/// Right: single precision, which is exact up to 16 million photographs.
#[edit([right as f64, photographs as f64] => [right as f32, photographs as f32])]
pub fn in_single_precision() {}
