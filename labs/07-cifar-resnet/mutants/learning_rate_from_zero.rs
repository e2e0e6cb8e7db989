//! Warmed up from zero, as other schedules do.

use crate::learning_rate::Recipe;

pub fn learning_rate(recipe: Recipe, step: u64) -> f64 {
    let scale = (recipe.batch_of_rank * recipe.world_size) as f64 / recipe.batch as f64;
    let scaled = recipe.rate * scale;
    if step >= recipe.warmup || scale <= 1.0 {
        return scaled;
    }
    scaled * step as f64 / recipe.warmup as f64
}
