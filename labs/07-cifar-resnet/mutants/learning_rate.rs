//! Other answers to `learning_rate`: wrong ones, and right ones that look unusual.

use crate::learning_rate::Recipe;

/// Only one rank's batch is looked at.
pub fn own_batch(recipe: Recipe, step: u64) -> f64 {
    let scale = (recipe.batch_of_rank) as f64 / recipe.batch as f64;
    let scaled = recipe.rate * scale;
    if step >= recipe.warmup || scale <= 1.0 {
        return scaled;
    }
    recipe.rate + (scaled - recipe.rate) * step as f64 / recipe.warmup as f64
}

/// Multiplied by the number of ranks, whatever batch the recipe was made for.
pub fn by_ranks(recipe: Recipe, step: u64) -> f64 {
    let scale = recipe.world_size as f64;
    let scaled = recipe.rate * scale;
    if step >= recipe.warmup || scale <= 1.0 {
        return scaled;
    }
    recipe.rate + (scaled - recipe.rate) * step as f64 / recipe.warmup as f64
}

/// Warmed up from zero, as other schedules do.
pub fn from_zero(recipe: Recipe, step: u64) -> f64 {
    let scale = (recipe.batch_of_rank * recipe.world_size) as f64 / recipe.batch as f64;
    let scaled = recipe.rate * scale;
    if step >= recipe.warmup || scale <= 1.0 {
        return scaled;
    }
    scaled * step as f64 / recipe.warmup as f64
}

/// The large rate from the very first step.
pub fn no_warm_up(recipe: Recipe, step: u64) -> f64 {
    let scale = (recipe.batch_of_rank * recipe.world_size) as f64 / recipe.batch as f64;
    let scaled = recipe.rate * scale;
    if true {
        return scaled;
    }
    recipe.rate + (scaled - recipe.rate) * step as f64 / recipe.warmup as f64
}

/// The line goes on after the warm-up.
pub fn rises_for_ever(recipe: Recipe, step: u64) -> f64 {
    let scale = (recipe.batch_of_rank * recipe.world_size) as f64 / recipe.batch as f64;
    let scaled = recipe.rate * scale;
    if scale <= 1.0 {
        return scaled;
    }
    recipe.rate + (scaled - recipe.rate) * step as f64 / recipe.warmup as f64
}

/// Counts steps from 1.
pub fn step_early(recipe: Recipe, step: u64) -> f64 {
    let scale = (recipe.batch_of_rank * recipe.world_size) as f64 / recipe.batch as f64;
    let scaled = recipe.rate * scale;
    if step >= recipe.warmup || scale <= 1.0 {
        return scaled;
    }
    recipe.rate + (scaled - recipe.rate) * (step + 1) as f64 / recipe.warmup as f64
}

/// Warms up to a smaller rate, too.
pub fn falls(recipe: Recipe, step: u64) -> f64 {
    let scale = (recipe.batch_of_rank * recipe.world_size) as f64 / recipe.batch as f64;
    let scaled = recipe.rate * scale;
    if step >= recipe.warmup {
        return scaled;
    }
    recipe.rate + (scaled - recipe.rate) * step as f64 / recipe.warmup as f64
}

/// Right: a blend of two rates.
pub fn blends(recipe: Recipe, step: u64) -> f64 {
    let scale = (recipe.batch_of_rank * recipe.world_size) as f64 / recipe.batch as f64;
    let done = if recipe.warmup == 0 { 1.0 } else { (step as f64 / recipe.warmup as f64).min(1.0) };
    recipe.rate * (scale.min(1.0) * (1.0 - done) + scale * done)
}
