//! Rank 0's accuracy, for all.

use c10d::{ProcessGroup, Rank};
use tch::Tensor;

use crate::best::Best;

pub fn best(
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
