//! Answers to `large_batch`: wrong ones, and an unusual right one.

use crate::recipe::Recipe;

fn times(recipe: &Recipe) -> f64 {
    (recipe.batch_of_a_rank * recipe.ranks) as f64 / recipe.batch as f64
}

fn rising(recipe: &Recipe, step: u64, from: f64, to: f64) -> f64 {
    from + (to - from) * (step as f64 / recipe.warm_up as f64).min(1.0)
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

/// Rises without an end.
pub fn endless(recipe: &Recipe, step: u64) -> f64 {
    recipe.lr * (1.0 + (times(recipe) - 1.0) * step as f64 / recipe.warm_up as f64)
}

/// Right: adds up the steps' increases.
pub fn adds_up(recipe: &Recipe, step: u64) -> f64 {
    let increase = recipe.lr * (times(recipe) - 1.0) / recipe.warm_up as f64;
    (0..step.min(recipe.warm_up)).fold(recipe.lr, |rate, _| rate + increase)
}
