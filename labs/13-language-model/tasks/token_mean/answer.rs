//! Task 2: a step of many micro-batches.
//!
//! Two or three ranks have up to four micro-batches each, with different numbers of tokens that have a target. A rank may have more
//! micro-batches than another, and a micro-batch, or all of a rank, may have no token with a target.

use anyhow::Result;
use c10d::ReduceOp;
use tch::Tensor;

use crate::accumulating::{Batch, Model};

/// Runs forward and backward passes of all `batches` of this rank. Afterwards each rank has the gradients of the mean loss over
/// all tokens of all ranks that have a target, as if they were one batch. Returns this mean. However many micro-batches there are,
/// gradients are exchanged once, and numbers that the ranks add up at most three times.
pub fn token_mean(model: &Model<'_>, batches: &[Batch]) -> Result<f64> {
    // <answer>
    //~ // A mean of means: a token of a short micro-batch weighs more.
    //~ let mut sum = 0.0;
    //~ for batch in batches {
    //~     let loss = model.losses(batch) / batch.tokens() as f64 / batches.len() as f64;
    //~     model.backward(&loss)?;
    //~     sum += loss.double_value(&[]);
    //~ }
    //~ Ok(sum)
    let group = model.group();
    let own: i64 = batches.iter().map(Batch::tokens).sum();
    let mut all = Tensor::from_slice(&[own as f64]);
    group.all_reduce(&mut all, ReduceOp::Sum)?;
    let all = all.double_value(&[0]);
    let mut sum = Tensor::from_slice(&[0.0]);
    let mut pass = |batch: &Batch| {
        let losses = model.losses(batch);
        sum += losses.detach();
        // The ranks' gradients are averaged, not added.
        model.backward(&(losses * group.size().get() as f64 / all))
    };
    let (others, last) = batches.split_at(batches.len() - 1);
    model.no_sync(|| others.iter().try_for_each(&mut pass))?;
    last.iter().try_for_each(pass)?;
    group.all_reduce(&mut sum, ReduceOp::Sum)?;
    Ok(sum.double_value(&[0]) / all)
    // </answer>
}
