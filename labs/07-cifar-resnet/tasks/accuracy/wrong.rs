//! Answers to `accuracy`: wrong ones, and unusual right ones.

use anyhow::Result;
use c10d::{ProcessGroup, Rank, ReduceOp};
use lockstep_answers::{edit, given};
use tch::{Kind, Tensor};

/// Sends rank 0's accuracy to all ranks.
#[edit(group.all_reduce(&mut sums, ReduceOp::Sum)?; => group.broadcast(&mut sums, Rank::ZERO)?;)]
pub fn of_rank_0() {}

/// The given program, as in the tutorial: the mean of the batches' accuracies on each rank alone.
#[given]
pub fn of_batches() {}

/// Returns each rank's own accuracy.
pub fn own(_: &ProcessGroup, batches: &[(Tensor, Tensor)]) -> Result<f64> {
    let (mut correct, mut pictures) = (0.0, 0.0);
    for (predicted, right) in batches {
        correct += predicted.eq_tensor(right).sum(Kind::Double).double_value(&[]);
        pictures += right.size()[0] as f64;
    }
    Ok(if pictures > 0.0 { correct / pictures } else { 0.0 })
}

/// Sums on rank 0 only.
#[edit(group.all_reduce(&mut sums, ReduceOp::Sum)?; => group.reduce(&mut sums, Rank::ZERO, ReduceOp::Sum)?; if !group.rank().is_zero() { return Ok(0.0); })]
pub fn only_rank_0() {}

/// Averages the ranks' accuracies, whatever the length of their shares.
#[edit([correct, pictures] => [correct / f64::max(pictures, 1.0), 1.0])]
pub fn mean_of_ranks() {}

/// Calls an all-reduce for each batch, so the rank with the most batches waits forever.
pub fn each_batch(group: &ProcessGroup, batches: &[(Tensor, Tensor)]) -> Result<f64> {
    let (mut correct, mut pictures) = (0.0, 0.0);
    for (predicted, right) in batches {
        let here = predicted.eq_tensor(right).sum(Kind::Double).double_value(&[]);
        let mut sums = Tensor::from_slice(&[here, right.size()[0] as f64]);
        group.all_reduce(&mut sums, ReduceOp::Sum)?;
        correct += sums.double_value(&[0]);
        pictures += sums.double_value(&[1]);
    }
    Ok(correct / pictures)
}

/// Adds the right predictions over the ranks, but not the pictures.
#[edit(sums.double_value(&[1]) => (pictures * group.size().get() as f64))]
pub fn own_pictures() {}

/// Adds the ranks' accuracies up.
#[edit([correct, pictures] => [correct / pictures])]
#[edit(/ sums.double_value(&[1]) => )]
pub fn added() {}

/// Divides by the number of batches.
#[edit([correct, pictures] => [correct, batches.len() as f64])]
pub fn by_batches() {}

/// Counts in half precision.
#[edit(Tensor::from_slice(&[correct, pictures]) => Tensor::from_slice(&[correct, pictures]).to_kind(Kind::Half))]
pub fn half_precision() {}

/// Counts each batch with the length of the first.
#[edit([correct, pictures] => [correct, batches.first().map_or(0, |batch| batch.1.size()[0] * batches.len() as i64) as f64])]
pub fn by_first_batch() {}

/// Right: gathers the counts of all ranks as whole numbers.
pub fn gathers(group: &ProcessGroup, batches: &[(Tensor, Tensor)]) -> Result<f64> {
    let (mut correct, mut pictures) = (0, 0);
    for (predicted, right) in batches {
        correct += predicted.eq_tensor(right).sum(Kind::Int64).int64_value(&[]);
        pictures += right.size()[0];
    }
    let own = Tensor::from_slice(&[correct, pictures]);
    let mut all: Vec<Tensor> = group.members().iter().map(|_| own.zeros_like()).collect();
    group.all_gather(&mut all, &own)?;
    let sum = |place: i64| all.iter().map(|counts| counts.int64_value(&[place])).sum::<i64>() as f64;
    Ok(sum(0) / sum(1))
}
