//! Right: rank 0 alone adds up and divides, and tells the others.

use c10d::{ProcessGroup, Rank, ReduceOp};
use tch::Tensor;

use crate::best::Best;

pub fn best(
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
