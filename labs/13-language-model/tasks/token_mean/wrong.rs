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

/// Runs all passes with these weights of their losses, and exchanges gradients in the last one. Returns the sum of the losses.
fn passes(model: &Model<'_>, batches: &[Batch], weight: impl Fn(&Batch) -> f64) -> Result<f64> {
    let mut sum = 0.0;
    let mut pass = |batch: &Batch| {
        let losses = model.losses(batch);
        sum += losses.double_value(&[]);
        model.backward(&(losses * weight(batch)))
    };
    let (others, last) = batches.split_at(batches.len() - 1);
    model.no_sync(|| others.iter().try_for_each(&mut pass))?;
    last.iter().try_for_each(pass)?;
    Ok(sum)
}

/// The right mean loss, for answers that are wrong elsewhere.
fn mean(model: &Model<'_>, batches: &[Batch], sum: f64) -> Result<f64> {
    Ok(total(model, sum)? / total(model, tokens(batches))?)
}

/// The given program: a mean of means, and an exchange in each pass.
#[given]
pub fn given() {}

/// Averages the means of the micro-batches.
pub fn mean_of_means(model: &Model<'_>, batches: &[Batch]) -> Result<f64> {
    let weight = |batch: &Batch| 1.0 / (batch.tokens().max(1) as f64) / batches.len() as f64;
    let sum = passes(model, batches, weight)?;
    mean(model, batches, sum)
}

/// Adds up the means of the micro-batches.
pub fn sum_of_means(model: &Model<'_>, batches: &[Batch]) -> Result<f64> {
    let sum = passes(model, batches, |batch| 1.0 / batch.tokens().max(1) as f64)?;
    mean(model, batches, sum)
}

/// Averages the means of the ranks.
pub fn mean_of_ranks(model: &Model<'_>, batches: &[Batch]) -> Result<f64> {
    let own = tokens(batches).max(1.0);
    let sum = passes(model, batches, |_| 1.0 / own)?;
    mean(model, batches, sum)
}

/// Does not divide.
pub fn sums(model: &Model<'_>, batches: &[Batch]) -> Result<f64> {
    let sum = passes(model, batches, |_| 1.0)?;
    mean(model, batches, sum)
}

/// Forgets that the exchange averages.
pub fn divided_twice(model: &Model<'_>, batches: &[Batch]) -> Result<f64> {
    let all = total(model, tokens(batches))?;
    let sum = passes(model, batches, |_| 1.0 / all)?;
    mean(model, batches, sum)
}

/// Exchanges gradients in each pass.
pub fn exchanges_each(model: &Model<'_>, batches: &[Batch]) -> Result<f64> {
    let all = total(model, tokens(batches))?;
    let mut sum = 0.0;
    for batch in batches {
        let losses = model.losses(batch);
        sum += losses.double_value(&[]);
        model.backward(&(losses * ranks(model) / all))?;
    }
    Ok(total(model, sum)? / all)
}

/// Never exchanges gradients.
pub fn never_exchanges(model: &Model<'_>, batches: &[Batch]) -> Result<f64> {
    let all = total(model, tokens(batches))?;
    let sum = model.no_sync(|| passes(model, batches, |_| ranks(model) / all))?;
    mean(model, batches, sum)
}

/// Runs only the last micro-batch.
pub fn last_only(model: &Model<'_>, batches: &[Batch]) -> Result<f64> {
    let all = total(model, tokens(batches))?;
    let last = &batches[batches.len() - 1..];
    let sum = passes(model, last, |_| ranks(model) / all)?;
    Ok(total(model, sum)? / all)
}

/// Takes the rank's mean first: one without tokens divides by zero.
pub fn zero_tokens(model: &Model<'_>, batches: &[Batch]) -> Result<f64> {
    let (own, all) = (tokens(batches), total(model, tokens(batches))?);
    let mean = passes(model, batches, |_| ranks(model) / all)? / own;
    Ok(total(model, mean * own)? / all)
}

/// Returns the loss of this rank.
pub fn own_loss(model: &Model<'_>, batches: &[Batch]) -> Result<f64> {
    let all = total(model, tokens(batches))?;
    let sum = passes(model, batches, |_| ranks(model) / all)?;
    Ok(sum / tokens(batches).max(1.0))
}

/// Returns the mean of the ranks' mean losses.
pub fn mean_loss_of_ranks(model: &Model<'_>, batches: &[Batch]) -> Result<f64> {
    let all = total(model, tokens(batches))?;
    let sum = passes(model, batches, |_| ranks(model) / all)?;
    Ok(total(model, sum / tokens(batches).max(1.0))? / ranks(model))
}

/// Adds up the tokens of each micro-batch over the ranks, which have different numbers of them.
pub fn totals_each(model: &Model<'_>, batches: &[Batch]) -> Result<f64> {
    let mut all = 0.0;
    for batch in batches {
        all += total(model, batch.tokens() as f64)?;
    }
    let sum = passes(model, batches, |_| ranks(model) / all)?;
    Ok(total(model, sum)? / all)
}

/// Exchanges gradients in the first pass only.
pub fn first_exchanges(model: &Model<'_>, batches: &[Batch]) -> Result<f64> {
    let all = total(model, tokens(batches))?;
    let mut sum = 0.0;
    let mut pass = |batch: &Batch| {
        let losses = model.losses(batch);
        sum += losses.double_value(&[]);
        model.backward(&(losses * ranks(model) / all))
    };
    let (first, others) = batches.split_at(1);
    first.iter().try_for_each(&mut pass)?;
    model.no_sync(|| others.iter().try_for_each(pass))?;
    Ok(total(model, sum)? / all)
}

/// Leaves out the first micro-batch.
#[edit(batches.split_at(batches.len() - 1) => batches[1..].split_at(batches.len() - 2))]
pub fn without_first() {}

/// Weighs the first micro-batch twice: a mistake of no known kind.
pub fn first_twice(model: &Model<'_>, batches: &[Batch]) -> Result<f64> {
    let all = total(model, tokens(batches))?;
    let weight = |batch: &Batch| if std::ptr::eq(batch, &batches[0]) { 2.0 } else { 1.0 };
    let sum = passes(model, batches, |batch| weight(batch) * ranks(model) / all)?;
    Ok(total(model, sum)? / all)
}

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
