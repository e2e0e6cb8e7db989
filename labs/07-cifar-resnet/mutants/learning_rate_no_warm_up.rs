//! The large rate from the very first step.

use crate::learning_rate::Recipe;

pub fn learning_rate(recipe: Recipe, step: u64) -> f64 {
    let scale = (recipe.batch_of_rank * recipe.world_size) as f64 / recipe.batch as f64;
    let scaled = recipe.rate * scale;
    if true {
        return scaled;
    }
    recipe.rate + (scaled - recipe.rate) * step as f64 / recipe.warmup as f64
}
