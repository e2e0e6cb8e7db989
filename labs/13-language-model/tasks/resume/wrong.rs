//! Answers to `resume`: wrong ones, and unusual right ones.

use anyhow::Result;
use c10d::ReduceOp;
use lockstep_answers::edit;
use tch::Tensor;

use crate::resumable::{Run, SCALE, Settings};

/// Starts from the beginning each time.
#[edit(run.snapshot().unwrap_or_else(|| vec![0.0, 0.0, 0.0, SCALE, 0.0]) => [0.0, 0.0, 0.0, SCALE, 0.0])]
pub fn no_snapshot() {}

/// Starts the epoch again.
#[edit(saved[1] as usize => 0)]
pub fn epoch_again() {}

/// Saves how many windows this rank has trained with.
#[edit(saved[1] as usize => saved[1] as usize * run.ranks)]
#[edit(at as f64 => (at / run.ranks) as f64)]
pub fn own_windows() {}

/// Begins the schedule again, with its warm-up.
#[edit(saved[2] as u64 => 0)]
pub fn warm_up_again() {}

/// Counts a batch whose step was skipped in the schedule.
#[edit((scale, clean) = (scale / 2.0, 0) => (steps, scale, clean) = (steps + 1, scale / 2.0, 0))]
pub fn counts_batches() {}

/// Begins with the first scale again.
#[edit(saved[3] => SCALE)]
pub fn first_scale() {}

/// Forgets how many steps the scale has been right for.
#[edit(saved[4] as u64 => 0)]
pub fn no_count() {}

/// Each rank looks at its own gradients only.
#[edit(run.group.all_reduce(&mut overflows, ReduceOp::Max)?; => )]
pub fn own_overflow() {}

/// Takes the step although a gradient has overflowed.
#[edit((scale, clean) = (scale / 2.0, 0) => run.step(run.learning_rate(steps)); (steps, scale, clean) = (steps + 1, scale / 2.0, 0))]
pub fn no_skip() {}

/// Skips the step and keeps the scale.
#[edit((scale / 2.0, 0) => (scale, 0))]
pub fn no_halving() {}

/// Never makes the scale larger.
#[edit(clean == growth_interval => false)]
pub fn no_growth() {}

/// Saves the next position before the batch is trained.
#[edit(run.save(&[epoch as f64, at as f64, steps as f64, scale, clean as f64]); => )]
#[edit(let finite => run.save(&[epoch as f64, (at + all.len()) as f64, steps as f64, scale, clean as f64]); let finite)]
pub fn saves_before() {}

/// Every rank trains with the whole batch.
#[edit(all.iter().skip(run.rank).step_by(run.ranks).copied().collect() => all.to_vec())]
pub fn whole_batch() {}

/// Drops windows so that all ranks have as many.
#[edit(all.iter().skip(run.rank).step_by(run.ranks).copied().collect() => all[all.len() / run.ranks * run.rank..][..all.len() / run.ranks].to_vec())]
pub fn drops_rest() {}

/// The scale never grows above the first one.
#[edit(2.0 * scale => (2.0 * scale).min(SCALE))]
pub fn capped() {}

/// The scale is never less than half of the first one.
#[edit(scale / 2.0 => (scale / 2.0).max(SCALE / 2.0))]
pub fn floored() {}

/// Halves the scale for each rank that overflows.
#[edit(ReduceOp::Max => ReduceOp::Sum)]
#[edit(scale / 2.0 => scale / 2f64.powi(overflows.int64_value(&[]) as i32))]
pub fn halves_for_each() {}

/// Counts the steps without an overflow from each epoch's beginning.
#[edit(at = 0; => (at, clean) = (0, 0);)]
pub fn counts_in_epochs() {}

/// Begins each epoch with the first scale.
#[edit(at = 0; => (at, scale) = (0, SCALE);)]
pub fn scale_of_epochs() {}

/// Saves the beginning of an epoch at its end.
#[edit(at as f64 => (at % windows) as f64)]
pub fn same_epoch() {}

/// Leaves out a batch without a window of this rank.
#[edit(let finite = => if mine.is_empty() { at += all.len(); continue; } let finite =)]
pub fn skips_empty() {}

/// Right: each rank takes a block of neighbours, and the position counts from the first epoch.
#[edit(all.iter().skip(run.rank).step_by(run.ranks).copied().collect() =>
    all[all.len() * run.rank / run.ranks..all.len() * (run.rank + 1) / run.ranks].to_vec()
)]
#[edit(epoch as f64, at as f64 => 0.0, (epoch as usize * windows + at) as f64)]
#[edit(saved[0] as u64, saved[1] as usize => (saved[1] as usize / windows) as u64, saved[1] as usize % windows)]
pub fn blocks() {}

/// Right: saves the scale as the exponent of a power of two.
#[edit(SCALE, 0.0 => SCALE.log2(), 0.0)]
#[edit(saved[3] => saved[3].exp2())]
#[edit(steps as f64, scale => steps as f64, scale.log2())]
pub fn exponent() {}
