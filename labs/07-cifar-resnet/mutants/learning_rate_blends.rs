//! Right: a blend of two rates.

use crate::learning_rate::Recipe;

pub fn learning_rate(recipe: Recipe, step: u64) -> f64 {
    let scale = (recipe.batch_of_rank * recipe.world_size) as f64 / recipe.batch as f64;
    let done = if recipe.warmup == 0 { 1.0 } else { (step as f64 / recipe.warmup as f64).min(1.0) };
    recipe.rate * (scale.min(1.0) * (1.0 - done) + scale * done)
}
