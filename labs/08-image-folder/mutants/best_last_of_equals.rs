//! Of equal ones the last is kept.

use c10d::{ProcessGroup, ReduceOp};
use tch::Tensor;

use crate::best::Best;

pub fn best(
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
