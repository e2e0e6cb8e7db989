//! Answers to `large_batch`: wrong ones, and an unusual right one.

use crate::training::Recipe;

fn times(recipe: &Recipe) -> f64 {
    (recipe.batch_of_a_rank * recipe.ranks) as f64 / recipe.batch as f64
}

fn rising(recipe: &Recipe, step: u64, from: f64, to: f64) -> f64 {
    if step < recipe.warm_up { from + (to - from) * step as f64 / recipe.warm_up as f64 } else { to }
}

/// Keeps the recipe's rate.
pub fn unscaled(recipe: &Recipe, _: u64) -> f64 {
    recipe.lr
}

/// Scales from the first step on.
pub fn no_warm_up(recipe: &Recipe, _: u64) -> f64 {
    recipe.lr * times(recipe)
}

/// Scales by the number of ranks, whatever their batch.
pub fn by_ranks(recipe: &Recipe, step: u64) -> f64 {
    rising(recipe, step, recipe.lr, recipe.lr * recipe.ranks as f64)
}

/// Scales by the square root, which is the rule for Adam.
pub fn square_root(recipe: &Recipe, step: u64) -> f64 {
    rising(recipe, step, recipe.lr, recipe.lr * times(recipe).sqrt())
}

/// Begins with a rate of 0.
pub fn from_zero(recipe: &Recipe, step: u64) -> f64 {
    rising(recipe, step, 0.0, recipe.lr * times(recipe))
}

/// Keeps rising after the warm-up.
pub fn endless(recipe: &Recipe, step: u64) -> f64 {
    recipe.lr * (1.0 + (times(recipe) - 1.0) * step as f64 / recipe.warm_up as f64)
}

/// Rises by the same factor in each step.
pub fn by_factors(recipe: &Recipe, step: u64) -> f64 {
    if step < recipe.warm_up {
        recipe.lr * times(recipe).powf(step as f64 / recipe.warm_up as f64)
    } else {
        recipe.lr * times(recipe)
    }
}

/// Keeps the recipe's rate in the warm-up.
pub fn jumps(recipe: &Recipe, step: u64) -> f64 {
    if step < recipe.warm_up { recipe.lr } else { recipe.lr * times(recipe) }
}

/// Has risen before the first step.
pub fn one_early(recipe: &Recipe, step: u64) -> f64 {
    rising(recipe, if step < recipe.warm_up { step + 1 } else { step }, recipe.lr, recipe.lr * times(recipe))
}

/// Divides by the steps between the first and the last one.
pub fn steps_between(recipe: &Recipe, step: u64) -> f64 {
    let scaled = recipe.lr * times(recipe);
    if step + 1 >= recipe.warm_up {
        scaled
    } else {
        recipe.lr + (scaled - recipe.lr) * step as f64 / (recipe.warm_up - 1) as f64
    }
}

/// Begins with a part of the scaled rate, as many schedules do.
pub fn from_a_part(recipe: &Recipe, step: u64) -> f64 {
    let steps = recipe.warm_up.max(1);
    recipe.lr * times(recipe) * ((step + 1) as f64 / steps as f64).min(1.0)
}

/// Right: adds up the steps' increases.
pub fn adds_up(recipe: &Recipe, step: u64) -> f64 {
    let increase = recipe.lr * (times(recipe) - 1.0) / recipe.warm_up as f64;
    if recipe.warm_up == 0 {
        return recipe.lr * times(recipe);
    }
    (0..step.min(recipe.warm_up)).fold(recipe.lr, |rate, _| rate + increase)
}

/// Divides the batches as integers.
pub fn whole_times(recipe: &Recipe, step: u64) -> f64 {
    let times = recipe.batch_of_a_rank * recipe.ranks / recipe.batch;
    rising(recipe, step, recipe.lr, recipe.lr * times as f64)
}

/// Divides the batches as integers, and begins with a rate of 0.
pub fn whole_times_from_zero(recipe: &Recipe, step: u64) -> f64 {
    let times = recipe.batch_of_a_rank * recipe.ranks / recipe.batch;
    rising(recipe, step, 0.0, recipe.lr * times as f64)
}

/// Scales by the batch of one rank.
pub fn of_a_rank(recipe: &Recipe, step: u64) -> f64 {
    rising(recipe, step, recipe.lr, recipe.lr * recipe.batch_of_a_rank as f64 / recipe.batch as f64)
}

/// Divides 0 by 0 where there is no warm-up.
pub fn no_number(recipe: &Recipe, step: u64) -> f64 {
    let risen = (step.min(recipe.warm_up)) as f64 / recipe.warm_up as f64;
    recipe.lr * (1.0 + (times(recipe) - 1.0) * risen)
}

/// Warms up for a step at least.
pub fn at_least_a_step(recipe: &Recipe, step: u64) -> f64 {
    let risen = step as f64 / recipe.warm_up.max(1) as f64;
    recipe.lr * (1.0 + (times(recipe) - 1.0) * risen.min(1.0))
}
