//! Answers to `learning_rate`: wrong ones, and unusual right ones.

use lockstep_answers::edit;

use crate::learning_rate::Recipe;

/// Uses only one rank's batch.
#[edit(recipe.batch_of_rank * recipe.world_size => recipe.batch_of_rank)]
pub fn own_batch() {}

/// Is warm half way through.
#[edit((scaled - recipe.rate) * step as f64 / recipe.warmup as f64 => (scaled - recipe.rate) * (2.0 * step as f64 / recipe.warmup as f64).min(1.0))]
pub fn half_way() {}

/// Multiplies by the number of ranks, whatever the recipe's batch.
#[edit((recipe.batch_of_rank * recipe.world_size) as f64 / recipe.batch as f64 => recipe.world_size as f64)]
pub fn by_ranks() {}

/// Warms up from zero, as other schedules do.
#[edit(recipe.rate + (scaled - recipe.rate) * step => scaled * step)]
pub fn from_zero() {}

/// Uses the scaled rate from the first step on.
#[edit(step >= recipe.warmup || scale <= 1.0 => true)]
pub fn no_warm_up() {}

/// Keeps raising the rate after the warm-up.
#[edit(step >= recipe.warmup || scale <= 1.0 => scale <= 1.0)]
pub fn rises_forever() {}

/// Counts steps from 1.
#[edit(* step as f64 => * (step + 1) as f64)]
pub fn step_early() {}

/// Warms up to a smaller rate as well.
#[edit(step >= recipe.warmup || scale <= 1.0 => step >= recipe.warmup)]
pub fn falls() {}

/// Keeps the recipe's rate for a smaller batch.
#[edit((recipe.batch_of_rank * recipe.world_size) as f64 / recipe.batch as f64 => ((recipe.batch_of_rank * recipe.world_size) as f64 / recipe.batch as f64).max(1.0))]
pub fn never_below() {}

/// Divides whole numbers, as `//` does in Python.
#[edit((recipe.batch_of_rank * recipe.world_size) as f64 / recipe.batch as f64 => (recipe.batch_of_rank * recipe.world_size / recipe.batch) as f64)]
pub fn whole_times() {}

/// Divides by the growth of the batch.
#[edit((recipe.batch_of_rank * recipe.world_size) as f64 / recipe.batch as f64 => recipe.batch as f64 / (recipe.batch_of_rank * recipe.world_size) as f64)]
pub fn wrong_way_round() {}

/// Uses the square root rule.
#[edit(recipe.rate * scale => recipe.rate * scale.sqrt())]
pub fn square_root() {}

/// Divides the step by the warm-up as whole numbers, which gives 0.
#[edit(step as f64 / recipe.warmup as f64 => (step / recipe.warmup) as f64)]
pub fn whole_steps() {}

/// Multiplies in each step by the same factor.
#[edit(recipe.rate + (scaled - recipe.rate) * step as f64 / recipe.warmup as f64 => recipe.rate * scale.powf(step as f64 / recipe.warmup as f64))]
pub fn by_factors() {}

/// Adds the scaled rate to the recipe's own.
#[edit((scaled - recipe.rate) * step => scaled * step)]
pub fn beyond() {}

/// Reaches the scaled rate at the step before the last one of the warm-up.
#[edit(/ recipe.warmup as f64 => / (recipe.warmup - 1) as f64)]
pub fn full_early() {}

/// Warms up from a part of the scaled rate, as many schedules do.
#[edit(recipe.rate + (scaled - recipe.rate) * step as f64 => scaled * (step + 1) as f64)]
pub fn from_a_part() {}

/// Right: blends two rates.
pub fn blends(recipe: Recipe, step: u64) -> f64 {
    let scale = (recipe.batch_of_rank * recipe.world_size) as f64 / recipe.batch as f64;
    let done = if recipe.warmup == 0 { 1.0 } else { (step as f64 / recipe.warmup as f64).min(1.0) };
    recipe.rate * (scale.min(1.0) * (1.0 - done) + scale * done)
}
