//! Answers to `token_mean`: wrong ones, and unusual right ones.

use anyhow::Result;
use c10d::ReduceOp;
use lockstep_answers::{edit, given};
use tch::Tensor;

use crate::accumulating::{Batch, Model};

/// The sum over all ranks.
fn total(model: &Model<'_>, own: f64) -> Result<f64> {
    let mut sum = Tensor::from_slice(&[own]);
    model.group().all_reduce(&mut sum, ReduceOp::Sum)?;
    Ok(sum.double_value(&[0]))
}

fn tokens(batches: &[Batch]) -> f64 {
    batches.iter().map(Batch::tokens).sum::<i64>() as f64
}

fn ranks(model: &Model<'_>) -> f64 {
    model.group().size().get() as f64
}

/// The given program: a mean of means, and an exchange in each pass.
#[given]
pub fn given() {}

/// Averages the means of the micro-batches.
#[edit(losses * group.size().get() as f64 / all => losses / batch.tokens().max(1) as f64 / batches.len() as f64)]
pub fn mean_of_means() {}

/// Adds up the means of the micro-batches.
#[edit(losses * group.size().get() as f64 / all => losses / batch.tokens().max(1) as f64)]
pub fn sum_of_means() {}

/// Averages the means of the ranks.
#[edit(losses * group.size().get() as f64 / all => losses / own.max(1) as f64)]
pub fn mean_of_ranks() {}

/// Does not divide.
#[edit(losses * group.size().get() as f64 / all => losses)]
pub fn sums() {}

/// Forgets that the exchange averages.
#[edit(losses * group.size().get() as f64 / all => losses / all)]
pub fn divided_twice() {}

/// Exchanges gradients in each pass.
#[edit(model.no_sync(|| others.iter().try_for_each(&mut pass))?; => others.iter().try_for_each(&mut pass)?;)]
pub fn exchanges_each() {}

/// Never exchanges gradients.
#[edit(last.iter().try_for_each(pass)?; => model.no_sync(|| last.iter().try_for_each(pass))?;)]
pub fn never_exchanges() {}

/// Runs only the last micro-batch.
#[edit(model.no_sync(|| others.iter().try_for_each(&mut pass))?; => )]
pub fn last_only() {}

/// Takes the rank's mean first: one without tokens divides by zero.
#[edit(group.all_reduce(&mut sum, ReduceOp::Sum)?; => sum = sum / own as f64 * own as f64; group.all_reduce(&mut sum, ReduceOp::Sum)?;)]
pub fn zero_tokens() {}

/// Returns the loss of this rank.
#[edit(group.all_reduce(&mut sum, ReduceOp::Sum)?; => )]
#[edit(sum.double_value(&[0]) / all => sum.double_value(&[0]) / own.max(1) as f64)]
pub fn own_loss() {}

/// Returns the mean of the ranks' mean losses.
#[edit(group.all_reduce(&mut sum, ReduceOp::Sum)?; => sum = sum / own.max(1) as f64; group.all_reduce(&mut sum, ReduceOp::Sum)?;)]
#[edit(sum.double_value(&[0]) / all => sum.double_value(&[0]) / group.size().get() as f64)]
pub fn mean_loss_of_ranks() {}

/// Adds up the tokens of each micro-batch over the ranks, which have different numbers of them.
#[edit(let mut all = Tensor::from_slice(&[own as f64]); group.all_reduce(&mut all, ReduceOp::Sum)?; =>
    let mut all = Tensor::from_slice(&[0.0]);
    for batch in batches {
        let mut tokens = Tensor::from_slice(&[batch.tokens() as f64]);
        group.all_reduce(&mut tokens, ReduceOp::Sum)?;
        all += tokens;
    }
)]
pub fn totals_each() {}

/// Exchanges gradients in the first pass only.
#[edit(batches.split_at(batches.len() - 1) => batches.split_at(1))]
#[edit(model.no_sync(|| others.iter().try_for_each(&mut pass))?; last.iter().try_for_each(pass)?; =>
    others.iter().try_for_each(&mut pass)?;
    model.no_sync(|| last.iter().try_for_each(pass))?;
)]
pub fn first_exchanges() {}

/// Leaves out the first micro-batch.
#[edit(batches.split_at(batches.len() - 1) => batches[1..].split_at(batches.len() - 2))]
pub fn without_first() {}

/// Weighs the first micro-batch twice: a mistake of no known kind.
#[edit(losses * group.size().get() as f64 / all =>
    losses * group.size().get() as f64 / all * if std::ptr::eq(batch, &batches[0]) { 2.0 } else { 1.0 }
)]
pub fn first_twice() {}

/// Right: exchanges tokens and losses together, before the backward passes.
pub fn forward_first(model: &Model<'_>, batches: &[Batch]) -> Result<f64> {
    let losses: Vec<Tensor> = batches.iter().map(|batch| model.losses(batch)).collect();
    let sum: f64 = losses.iter().map(|losses| losses.double_value(&[])).sum();
    let mut both = Tensor::from_slice(&[tokens(batches), sum]);
    model.group().all_reduce(&mut both, ReduceOp::Sum)?;
    let all = both.double_value(&[0]);
    let count = losses.len();
    for (number, losses) in losses.into_iter().enumerate() {
        let loss = losses / (all / ranks(model));
        if number + 1 < count { model.no_sync(|| model.backward(&loss))? } else { model.backward(&loss)? }
    }
    Ok(both.double_value(&[1]) / all)
}

/// Right: adds up all losses first, and runs one backward pass.
pub fn one_backward(model: &Model<'_>, batches: &[Batch]) -> Result<f64> {
    let all = total(model, tokens(batches))?;
    let sum = batches.iter().map(|batch| model.losses(batch)).sum::<Tensor>();
    model.backward(&(&sum * ranks(model) / all))?;
    Ok(total(model, sum.double_value(&[]))? / all)
}
