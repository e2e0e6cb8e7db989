//! Answers to `accuracy`: wrong ones, and unusual right ones.

use anyhow::Result;
use c10d::{ProcessGroup, Rank, ReduceOp};
use lockstep_answers::edit;
use tch::{Kind, Tensor};

/// Sends rank 0's accuracy to all ranks.
#[edit(group.all_reduce(&mut sums, ReduceOp::Sum)?; => group.broadcast(&mut sums, Rank::ZERO)?;)]
pub fn of_rank_0() {}

/// The given program, as in the tutorial: the mean of the batches' accuracies on each rank alone.
pub fn of_batches(_: &ProcessGroup, batches: &[(Tensor, Tensor)]) -> Result<f64> {
    let mut sum = 0.0;
    for (predicted, right) in batches {
        let correct = predicted.eq_tensor(right).sum(Kind::Double).double_value(&[]);
        sum += correct / right.size()[0] as f64;
    }
    Ok(sum / batches.len() as f64)
}

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
pub fn only_rank_0(group: &ProcessGroup, batches: &[(Tensor, Tensor)]) -> Result<f64> {
    let (mut correct, mut pictures) = (0.0, 0.0);
    for (predicted, right) in batches {
        correct += predicted.eq_tensor(right).sum(Kind::Double).double_value(&[]);
        pictures += right.size()[0] as f64;
    }
    let mut sums = Tensor::from_slice(&[correct, pictures]);
    group.reduce(&mut sums, Rank::ZERO, ReduceOp::Sum)?;
    Ok(if group.rank().is_zero() { sums.double_value(&[0]) / sums.double_value(&[1]) } else { 0.0 })
}

/// Averages the ranks' accuracies, whatever the length of their shares.
pub fn mean_of_ranks(group: &ProcessGroup, batches: &[(Tensor, Tensor)]) -> Result<f64> {
    let (mut correct, mut pictures) = (0.0, 0.0_f64);
    for (predicted, right) in batches {
        correct += predicted.eq_tensor(right).sum(Kind::Double).double_value(&[]);
        pictures += right.size()[0] as f64;
    }
    let mut mean = Tensor::from_slice(&[correct / pictures.max(1.0)]);
    group.all_reduce(&mut mean, ReduceOp::Sum)?;
    Ok(mean.double_value(&[0]) / group.size().get() as f64)
}

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
pub fn own_pictures(group: &ProcessGroup, batches: &[(Tensor, Tensor)]) -> Result<f64> {
    let (correct, pictures) = sums(batches);
    let mut correct = Tensor::from_slice(&[correct]);
    group.all_reduce(&mut correct, ReduceOp::Sum)?;
    Ok(correct.double_value(&[]) / (pictures * group.size().get() as f64))
}

/// Adds the ranks' accuracies up.
pub fn added(group: &ProcessGroup, batches: &[(Tensor, Tensor)]) -> Result<f64> {
    let (correct, pictures) = sums(batches);
    let mut accuracy = Tensor::from_slice(&[correct / pictures]);
    group.all_reduce(&mut accuracy, ReduceOp::Sum)?;
    Ok(accuracy.double_value(&[]))
}

/// Divides by the number of batches.
pub fn by_batches(group: &ProcessGroup, batches: &[(Tensor, Tensor)]) -> Result<f64> {
    let mut both = Tensor::from_slice(&[sums(batches).0, batches.len() as f64]);
    group.all_reduce(&mut both, ReduceOp::Sum)?;
    Ok(both.double_value(&[0]) / both.double_value(&[1]))
}

/// Counts in half precision.
pub fn half_precision(group: &ProcessGroup, batches: &[(Tensor, Tensor)]) -> Result<f64> {
    let (correct, pictures) = sums(batches);
    let mut all = Tensor::from_slice(&[correct, pictures]).to_kind(Kind::Half);
    group.all_reduce(&mut all, ReduceOp::Sum)?;
    Ok(all.double_value(&[0]) / all.double_value(&[1]))
}

/// Counts each batch with the length of the first.
pub fn by_first_batch(group: &ProcessGroup, batches: &[(Tensor, Tensor)]) -> Result<f64> {
    let pictures = batches.first().map_or(0, |batch| batch.1.size()[0] * batches.len() as i64);
    let mut all = Tensor::from_slice(&[sums(batches).0, pictures as f64]);
    group.all_reduce(&mut all, ReduceOp::Sum)?;
    Ok(all.double_value(&[0]) / all.double_value(&[1]))
}

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

/// Right predictions, and pictures.
fn sums(batches: &[(Tensor, Tensor)]) -> (f64, f64) {
    let correct =
        batches.iter().map(|(predicted, right)| predicted.eq_tensor(right).sum(Kind::Double).double_value(&[]));
    (correct.sum(), batches.iter().map(|(_, right)| right.size()[0] as f64).sum())
}
