//! Answers to `accuracy`: wrong ones, and unusual right ones.

use c10d::{ProcessGroup, Rank, ReduceOp};
use tch::{Kind, Tensor};

/// The given program, as in the tutorial: the mean of the batches' accuracies on each rank alone.
pub fn of_batches(_: &ProcessGroup, batches: &[(Tensor, Tensor)]) -> anyhow::Result<f64> {
    let mut sum = 0.0;
    for (predicted, right) in batches {
        let correct = predicted.eq_tensor(right).sum(Kind::Double).double_value(&[]);
        sum += correct / right.size()[0] as f64;
    }
    Ok(sum / batches.len() as f64)
}

/// Returns each rank's own accuracy.
pub fn own(_: &ProcessGroup, batches: &[(Tensor, Tensor)]) -> anyhow::Result<f64> {
    let (mut correct, mut pictures) = (0.0, 0.0);
    for (predicted, right) in batches {
        correct += predicted.eq_tensor(right).sum(Kind::Double).double_value(&[]);
        pictures += right.size()[0] as f64;
    }
    Ok(if pictures > 0.0 { correct / pictures } else { 0.0 })
}

/// Sums on rank 0 only.
pub fn only_rank_0(group: &ProcessGroup, batches: &[(Tensor, Tensor)]) -> anyhow::Result<f64> {
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
pub fn mean_of_ranks(group: &ProcessGroup, batches: &[(Tensor, Tensor)]) -> anyhow::Result<f64> {
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
pub fn each_batch(group: &ProcessGroup, batches: &[(Tensor, Tensor)]) -> anyhow::Result<f64> {
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

/// Right: gathers the counts of all ranks as whole numbers.
pub fn gathers(group: &ProcessGroup, batches: &[(Tensor, Tensor)]) -> anyhow::Result<f64> {
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
