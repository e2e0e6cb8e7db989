//! Other answers to `accuracy`: wrong ones, and right ones that look unusual.

use c10d::{ProcessGroup, Rank, ReduceOp};
use tch::{Kind, Tensor};

/// The mean of the batches' accuracies, on each rank for itself: the tutorial's. As it is given.
pub fn of_batches(_: &ProcessGroup, batches: &[(Tensor, Tensor)]) -> anyhow::Result<f64> {
    let mut sum = 0.0;
    for (predicted, right) in batches {
        let correct = predicted.eq_tensor(right).sum(Kind::Double).double_value(&[]);
        sum += correct / right.size()[0] as f64;
    }
    Ok(sum / batches.len() as f64)
}

/// Each rank's own, over its pictures.
pub fn own(_: &ProcessGroup, batches: &[(Tensor, Tensor)]) -> anyhow::Result<f64> {
    let (mut correct, mut pictures) = (0.0, 0.0);
    for (predicted, right) in batches {
        correct += predicted.eq_tensor(right).sum(Kind::Double).double_value(&[]);
        pictures += right.size()[0] as f64;
    }
    Ok(if pictures > 0.0 { correct / pictures } else { 0.0 })
}

/// Summed on rank 0 alone; the others return what their buffer holds after that.
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

/// The ranks' accuracies are averaged, whatever the length of their shares.
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

/// An all-reduce for each batch: the rank with a batch more waits for ever.
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

/// Right: all ranks get the counts of all, as whole numbers.
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
