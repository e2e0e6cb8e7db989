//! Answers to `log_loss`: wrong ones, and an unusual right one.

use anyhow::Result;
use c10d::{GroupOptions, ProcessGroup, Rank, ReduceOp};
use lockstep_answers::{edit, given};
use tch::Tensor;

fn over_ranks(group: &ProcessGroup, numbers: &[f64]) -> Result<Vec<f64>> {
    let mut sums = Tensor::from_slice(numbers);
    group.all_reduce(&mut sums, ReduceOp::Sum)?;
    Ok(Vec::try_from(sums / group.size().get() as f64)?)
}

/// The given program: two operations in each step.
#[given]
pub fn each_step() {}

/// Leaves out the barrier alone.
#[given]
#[edit(group.barrier()?; => )]
pub fn without_barrier() {}

/// Starts an operation in each step, and waits for a line's operations at its end.
pub fn waits_later(group: &ProcessGroup, losses: &[f64], every: usize) -> Result<Vec<f64>> {
    let line = |losses: &[f64]| -> Result<f64> {
        let start = |loss: &f64| group.all_reduce_async(Tensor::from_slice(&[*loss]), ReduceOp::Sum);
        let works = losses.iter().map(start).collect::<Result<Vec<_>, _>>()?;
        let sums = works.into_iter().map(|work| Ok(work.wait()?.double_value(&[0]))).collect::<Result<Vec<f64>>>()?;
        Ok(sums.iter().sum::<f64>() / (losses.len() * group.size().get()) as f64)
    };
    losses.chunks(every).map(line).collect()
}

/// Exchanges in each step, where the operations of the group are not counted.
pub fn group_of_its_own(group: &ProcessGroup, losses: &[f64], every: usize) -> Result<Vec<f64>> {
    let ranks: Vec<Rank> = group.size().ranks().collect();
    let other = group.new_group(&ranks, &GroupOptions::default())?.expect("each rank is a member");
    // It lives until the process ends: other ranks may still wait for this one.
    each_step(Box::leak(Box::new(other)), losses, every)
}

/// Logs the rank's own losses.
pub fn own(_: &ProcessGroup, losses: &[f64], every: usize) -> Result<Vec<f64>> {
    Ok(losses.chunks(every).map(|losses| losses.iter().sum::<f64>() / losses.len() as f64).collect())
}

/// Logs the last loss of each line.
#[edit(losses.iter().sum::<f64>() => losses[losses.len() - 1] * losses.len() as f64)]
pub fn last() {}

/// Divides the last line, which covers fewer steps, by `every`, too.
#[edit(losses.len() as f64 => every as f64)]
pub fn by_every() {}

/// Leaves out the last line.
#[edit(losses.chunks(every) => losses.chunks_exact(every))]
pub fn whole_lines() {}

/// Reduces the log to rank 0, which writes it.
pub fn on_rank_0(group: &ProcessGroup, losses: &[f64], every: usize) -> Result<Vec<f64>> {
    let mut sums = Tensor::from_slice(&own(group, losses, every)?);
    group.reduce(&mut sums, Rank::ZERO, ReduceOp::Sum)?;
    Ok(Vec::try_from(sums / group.size().get() as f64)?)
}

/// Never begins the sum again.
pub fn since_the_first(group: &ProcessGroup, losses: &[f64], every: usize) -> Result<Vec<f64>> {
    let ends = (1..=losses.len().div_ceil(every)).map(|line| losses.len().min(line * every));
    over_ranks(group, &ends.map(|end| losses[..end].iter().sum::<f64>() / end as f64).collect::<Vec<_>>())
}

/// Joins the last line, which covers fewer steps, with the one before.
pub fn joins_the_last(group: &ProcessGroup, losses: &[f64], every: usize) -> Result<Vec<f64>> {
    let lines = losses.len() / every;
    let end = |line: usize| if line + 1 == lines { losses.len() } else { (line + 1) * every };
    let mean = |line: usize| losses[line * every..end(line)].iter().sum::<f64>() / (end(line) - line * every) as f64;
    over_ranks(group, &(0..lines).map(mean).collect::<Vec<_>>())
}

/// Right: one operation for the whole log.
pub fn at_the_end(group: &ProcessGroup, losses: &[f64], every: usize) -> Result<Vec<f64>> {
    over_ranks(group, &own(group, losses, every)?)
}

/// Divides by the steps and not by the ranks.
#[edit((ranks * losses.len() as f64) => losses.len() as f64)]
pub fn not_by_ranks() {}
