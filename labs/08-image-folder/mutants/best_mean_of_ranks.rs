//! The mean of the ranks' accuracies.

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
    let mut mean = Tensor::from_slice(&[right as f64 / photographs as f64]);
    group.all_reduce(&mut mean, ReduceOp::Sum)?;
    let accuracy = mean.double_value(&[0]) / group.size().get() as f64;
    if best.is_none_or(|best| accuracy > best.accuracy) {
        *best = Some(Best { epoch, accuracy });
    }
    Ok(())
}
