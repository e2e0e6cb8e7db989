//! Answers to `best`: wrong ones, and unusual right ones.

use anyhow::Result;
use c10d::{ProcessGroup, Rank, ReduceOp};
use lockstep_answers::edit;
use tch::Tensor;

use crate::best::Best;

/// The given program: each rank decides by its own accuracy.
pub fn own(_: &ProcessGroup, best: &mut Option<Best>, epoch: u64, right: u64, photographs: u64) -> anyhow::Result<()> {
    let accuracy = right as f64 / photographs as f64;
    if best.is_none_or(|best| accuracy > best.accuracy) {
        *best = Some(Best { epoch, accuracy });
    }
    Ok(())
}

/// Decides by rank 0's accuracy.
pub fn rank_0_decides(
    group: &ProcessGroup,
    best: &mut Option<Best>,
    epoch: u64,
    right: u64,
    photographs: u64,
) -> anyhow::Result<()> {
    let mut accuracy = Tensor::from_slice(&[right as f64 / photographs as f64]);
    group.broadcast(&mut accuracy, Rank::ZERO)?;
    let accuracy = accuracy.double_value(&[0]);
    if best.is_none_or(|best| accuracy > best.accuracy) {
        *best = Some(Best { epoch, accuracy });
    }
    Ok(())
}

/// Decides by the mean of the ranks' accuracies.
pub fn mean_of_ranks(
    group: &ProcessGroup,
    best: &mut Option<Best>,
    epoch: u64,
    right: u64,
    photographs: u64,
) -> anyhow::Result<()> {
    let mut mean = Tensor::from_slice(&[right as f64 / photographs as f64]);
    group.all_reduce(&mut mean, ReduceOp::Sum)?;
    let accuracy = mean.double_value(&[0]) / group.size().get() as f64;
    if best.is_none_or(|best| accuracy > best.accuracy) {
        *best = Some(Best { epoch, accuracy });
    }
    Ok(())
}

/// Keeps the last of equal epochs.
#[edit(accuracy > best.accuracy => accuracy >= best.accuracy)]
pub fn last_of_equals() {}

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
pub fn counts(
    group: &ProcessGroup,
    best: &mut Option<Best>,
    epoch: u64,
    right: u64,
    _photographs: u64,
) -> anyhow::Result<()> {
    let mut sum = Tensor::from(right as i64);
    group.all_reduce(&mut sum, ReduceOp::Sum)?;
    let accuracy = sum.int64_value(&[]) as f64;
    if best.is_none_or(|best| accuracy > best.accuracy) {
        *best = Some(Best { epoch, accuracy });
    }
    Ok(())
}

/// Returns at once on a rank without photographs.
#[edit(let mut sums => if photographs == 0 { return Ok(()); } let mut sums)]
pub fn empty_leaves() {}

/// Adds up right predictions, and divides by this rank's photographs.
pub fn own_divisor(
    group: &ProcessGroup,
    best: &mut Option<Best>,
    epoch: u64,
    right: u64,
    photographs: u64,
) -> anyhow::Result<()> {
    let mut sum = Tensor::from(right as f64);
    group.all_reduce(&mut sum, ReduceOp::Sum)?;
    let accuracy = sum.double_value(&[]) / photographs as f64;
    if best.is_none_or(|best| accuracy > best.accuracy) {
        *best = Some(Best { epoch, accuracy });
    }
    Ok(())
}

/// Takes the highest accuracy of a rank.
pub fn highest(
    group: &ProcessGroup,
    best: &mut Option<Best>,
    epoch: u64,
    right: u64,
    photographs: u64,
) -> anyhow::Result<()> {
    let own = if photographs == 0 { 0.0 } else { right as f64 / photographs as f64 };
    let mut most = Tensor::from(own);
    group.all_reduce(&mut most, ReduceOp::Max)?;
    let accuracy = most.double_value(&[]);
    if best.is_none_or(|best| accuracy > best.accuracy) {
        *best = Some(Best { epoch, accuracy });
    }
    Ok(())
}

/// Updates the best epoch on rank 0 alone.
#[edit(if best.is_none_or => if group.rank().get() == 0 && best.is_none_or)]
pub fn rank_0_keeps() {}

/// Sums on rank 0 only.
pub fn reduces(
    group: &ProcessGroup,
    best: &mut Option<Best>,
    epoch: u64,
    right: u64,
    photographs: u64,
) -> anyhow::Result<()> {
    let mut sums = Tensor::from_slice(&[right as i64, photographs as i64]);
    group.reduce(&mut sums, Rank::ZERO, ReduceOp::Sum)?;
    let accuracy = sums.int64_value(&[0]) as f64 / sums.int64_value(&[1]) as f64;
    if best.is_none_or(|best| accuracy > best.accuracy) {
        *best = Some(Best { epoch, accuracy });
    }
    Ok(())
}

/// Counts each share with the length of its own.
pub fn equal_shares(
    group: &ProcessGroup,
    best: &mut Option<Best>,
    epoch: u64,
    right: u64,
    photographs: u64,
) -> anyhow::Result<()> {
    let mut sum = Tensor::from_slice(&[right as i64]);
    group.all_reduce(&mut sum, ReduceOp::Sum)?;
    let accuracy = sum.int64_value(&[0]) as f64 / (photographs * group.size().get() as u64) as f64;
    if best.is_none_or(|best| accuracy > best.accuracy) {
        *best = Some(Best { epoch, accuracy });
    }
    Ok(())
}

/// Right: adds up and divides on rank 0, which broadcasts the result.
pub fn broadcasts(
    group: &ProcessGroup,
    best: &mut Option<Best>,
    epoch: u64,
    right: u64,
    photographs: u64,
) -> anyhow::Result<()> {
    let mut sums = Tensor::from_slice(&[right as i64, photographs as i64]);
    group.reduce(&mut sums, Rank::ZERO, ReduceOp::Sum)?;
    let mut accuracy = Tensor::from_slice(&[sums.int64_value(&[0]) as f64 / sums.int64_value(&[1]).max(1) as f64]);
    group.broadcast(&mut accuracy, Rank::ZERO)?;
    let accuracy = accuracy.double_value(&[0]);
    *best = best.filter(|best| best.accuracy >= accuracy).or(Some(Best { epoch, accuracy }));
    Ok(())
}

/// Right: single precision, which is exact up to 16 million photographs.
pub fn in_single_precision(
    group: &ProcessGroup,
    best: &mut Option<Best>,
    epoch: u64,
    right: u64,
    photographs: u64,
) -> anyhow::Result<()> {
    let mut sums = Tensor::from_slice(&[right as f32, photographs as f32]);
    group.all_reduce(&mut sums, ReduceOp::Sum)?;
    let accuracy = f64::from(sums.double_value(&[0]) as f32 / sums.double_value(&[1]) as f32);
    match best {
        Some(before) if before.accuracy >= accuracy => {}
        _ => *best = Some(Best { epoch, accuracy }),
    }
    Ok(())
}
