//! Other answers to `best`: wrong ones, and right ones that look unusual.

use c10d::{ProcessGroup, Rank, ReduceOp};
use tch::Tensor;

use crate::best::Best;

/// Each rank by its own accuracy. As it is given.
pub fn own(_: &ProcessGroup, best: &mut Option<Best>, epoch: u64, right: u64, photographs: u64) -> anyhow::Result<()> {
    let accuracy = right as f64 / photographs as f64;
    if best.is_none_or(|best| accuracy > best.accuracy) {
        *best = Some(Best { epoch, accuracy });
    }
    Ok(())
}

/// Rank 0's accuracy, for all.
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

/// The mean of the ranks' accuracies.
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

/// Of equal ones the last is kept.
pub fn last_of_equals(
    group: &ProcessGroup,
    best: &mut Option<Best>,
    epoch: u64,
    right: u64,
    photographs: u64,
) -> anyhow::Result<()> {
    let mut sums = Tensor::from_slice(&[right as f64, photographs as f64]);
    group.all_reduce(&mut sums, ReduceOp::Sum)?;
    let accuracy = sums.double_value(&[0]) / sums.double_value(&[1]);
    if best.is_none_or(|best| accuracy >= best.accuracy) {
        *best = Some(Best { epoch, accuracy });
    }
    Ok(())
}

/// Only ranks that are better than before take part in the sum.
pub fn asks_if_promising(
    group: &ProcessGroup,
    best: &mut Option<Best>,
    epoch: u64,
    right: u64,
    photographs: u64,
) -> anyhow::Result<()> {
    let own = right as f64 / photographs as f64;
    if best.is_some_and(|best| own <= best.accuracy) {
        return Ok(());
    }
    let mut sums = Tensor::from_slice(&[right as f64, photographs as f64]);
    group.all_reduce(&mut sums, ReduceOp::Sum)?;
    let accuracy = sums.double_value(&[0]) / sums.double_value(&[1]);
    if best.is_none_or(|best| accuracy > best.accuracy) {
        *best = Some(Best { epoch, accuracy });
    }
    Ok(())
}

/// Right: rank 0 alone adds up and divides, and tells the others.
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
