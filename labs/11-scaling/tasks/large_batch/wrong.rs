//! Answers to `large_batch`: wrong ones, and an unusual right one.

use lockstep_answers::edit;

use crate::training::Recipe;

/// Keeps the recipe's rate.
#[edit(recipe.lr * (1.0 + (times - 1.0) * risen) => recipe.lr)]
pub fn unscaled() {}

/// Scales from the first step on.
#[edit(step < recipe.warm_up => false)]
pub fn no_warm_up() {}

/// Scales by the number of ranks, whatever their batch.
#[edit((recipe.batch_of_a_rank * recipe.ranks) as f64 / recipe.batch as f64 => recipe.ranks as f64)]
pub fn by_ranks() {}

/// Scales by the square root, which is the rule for Adam.
#[edit(times - 1.0 => times.sqrt() - 1.0)]
pub fn square_root() {}

/// Begins with a rate of 0.
#[edit((1.0 + (times - 1.0) * risen) => times * risen)]
pub fn from_zero() {}

/// Keeps rising after the warm-up.
#[edit(step < recipe.warm_up => true)]
pub fn endless() {}

/// Rises by the same factor in each step.
#[edit((1.0 + (times - 1.0) * risen) => times.powf(risen))]
pub fn by_factors() {}

/// Keeps the recipe's rate in the warm-up.
#[edit(step as f64 / recipe.warm_up as f64 => 0.0)]
pub fn jumps() {}

/// Has risen before the first step.
#[edit(step as f64 / => (step + 1) as f64 /)]
pub fn one_early() {}

/// Divides by the steps between the first and the last one.
#[edit(step < recipe.warm_up => step + 1 < recipe.warm_up)]
#[edit(/ recipe.warm_up as f64 => / (recipe.warm_up - 1) as f64)]
pub fn steps_between() {}

/// Begins with a part of the scaled rate, as many schedules do.
#[edit((1.0 + (times - 1.0) * risen) => times * risen)]
#[edit(step as f64 / => (step + 1) as f64 /)]
pub fn from_a_part() {}

/// Right: adds up the steps' increases.
pub fn adds_up(recipe: &Recipe, step: u64) -> f64 {
    let scaled = recipe.lr * (recipe.batch_of_a_rank * recipe.ranks) as f64 / recipe.batch as f64;
    if recipe.warm_up == 0 {
        return scaled;
    }
    let increase = (scaled - recipe.lr) / recipe.warm_up as f64;
    (0..step.min(recipe.warm_up)).fold(recipe.lr, |rate, _| rate + increase)
}

/// Divides the batches as integers.
#[edit((recipe.batch_of_a_rank * recipe.ranks) as f64 / recipe.batch as f64 => (recipe.batch_of_a_rank * recipe.ranks / recipe.batch) as f64)]
pub fn whole_times() {}

/// Divides the batches as integers, and begins with a rate of 0.
#[edit((recipe.batch_of_a_rank * recipe.ranks) as f64 / recipe.batch as f64 => (recipe.batch_of_a_rank * recipe.ranks / recipe.batch) as f64)]
#[edit((1.0 + (times - 1.0) * risen) => times * risen)]
pub fn whole_times_from_zero() {}

/// Scales by the batch of one rank.
#[edit(recipe.batch_of_a_rank * recipe.ranks => recipe.batch_of_a_rank)]
pub fn of_a_rank() {}

/// Divides 0 by 0 where there is no warm-up.
#[edit(step < recipe.warm_up => true)]
#[edit(step as f64 / => step.min(recipe.warm_up) as f64 /)]
pub fn no_number() {}

/// Warms up for a step at least.
#[edit(step < recipe.warm_up => step < recipe.warm_up.max(1))]
#[edit(/ recipe.warm_up as f64 => / recipe.warm_up.max(1) as f64)]
pub fn at_least_a_step() {}
