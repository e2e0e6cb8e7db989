//! Answers to `learning_rate`: wrong ones, and unusual right ones.

use crate::learning_rate::Recipe;

/// Uses only one rank's batch.
pub fn own_batch(recipe: Recipe, step: u64) -> f64 {
    let scale = (recipe.batch_of_rank) as f64 / recipe.batch as f64;
    let scaled = recipe.rate * scale;
    if step >= recipe.warmup || scale <= 1.0 {
        return scaled;
    }
    recipe.rate + (scaled - recipe.rate) * step as f64 / recipe.warmup as f64
}

/// Multiplies by the number of ranks, whatever the recipe's batch.
pub fn by_ranks(recipe: Recipe, step: u64) -> f64 {
    let scale = recipe.world_size as f64;
    let scaled = recipe.rate * scale;
    if step >= recipe.warmup || scale <= 1.0 {
        return scaled;
    }
    recipe.rate + (scaled - recipe.rate) * step as f64 / recipe.warmup as f64
}

/// Warms up from zero, as other schedules do.
pub fn from_zero(recipe: Recipe, step: u64) -> f64 {
    let scale = (recipe.batch_of_rank * recipe.world_size) as f64 / recipe.batch as f64;
    let scaled = recipe.rate * scale;
    if step >= recipe.warmup || scale <= 1.0 {
        return scaled;
    }
    scaled * step as f64 / recipe.warmup as f64
}

/// Uses the scaled rate from the first step on.
pub fn no_warm_up(recipe: Recipe, step: u64) -> f64 {
    let scale = (recipe.batch_of_rank * recipe.world_size) as f64 / recipe.batch as f64;
    let scaled = recipe.rate * scale;
    if true {
        return scaled;
    }
    recipe.rate + (scaled - recipe.rate) * step as f64 / recipe.warmup as f64
}

/// Keeps raising the rate after the warm-up.
pub fn rises_forever(recipe: Recipe, step: u64) -> f64 {
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

/// Warms up to a smaller rate as well.
pub fn falls(recipe: Recipe, step: u64) -> f64 {
    let scale = (recipe.batch_of_rank * recipe.world_size) as f64 / recipe.batch as f64;
    let scaled = recipe.rate * scale;
    if step >= recipe.warmup {
        return scaled;
    }
    recipe.rate + (scaled - recipe.rate) * step as f64 / recipe.warmup as f64
}

/// Keeps the recipe's rate for a smaller batch.
pub fn never_below(recipe: Recipe, step: u64) -> f64 {
    let scale = ((recipe.batch_of_rank * recipe.world_size) as f64 / recipe.batch as f64).max(1.0);
    if step >= recipe.warmup {
        return recipe.rate * scale;
    }
    recipe.rate * (1.0 + (scale - 1.0) * step as f64 / recipe.warmup as f64)
}

/// Divides whole numbers, as `//` does in Python.
pub fn whole_times(recipe: Recipe, step: u64) -> f64 {
    let scaled = recipe.rate * (recipe.batch_of_rank * recipe.world_size / recipe.batch) as f64;
    if step >= recipe.warmup || scaled <= recipe.rate {
        return scaled;
    }
    recipe.rate + (scaled - recipe.rate) * step as f64 / recipe.warmup as f64
}

/// Divides by the growth of the batch.
pub fn wrong_way_round(recipe: Recipe, step: u64) -> f64 {
    let scale = recipe.batch as f64 / (recipe.batch_of_rank * recipe.world_size) as f64;
    let scaled = recipe.rate * scale;
    if step >= recipe.warmup || scale <= 1.0 {
        return scaled;
    }
    recipe.rate + (scaled - recipe.rate) * step as f64 / recipe.warmup as f64
}

/// Uses the square root rule.
pub fn square_root(recipe: Recipe, step: u64) -> f64 {
    let scale = ((recipe.batch_of_rank * recipe.world_size) as f64 / recipe.batch as f64).sqrt();
    let scaled = recipe.rate * scale;
    if step >= recipe.warmup || scale <= 1.0 {
        return scaled;
    }
    recipe.rate + (scaled - recipe.rate) * step as f64 / recipe.warmup as f64
}

/// Divides the step by the warm-up as whole numbers, which gives 0.
pub fn whole_steps(recipe: Recipe, step: u64) -> f64 {
    let scale = (recipe.batch_of_rank * recipe.world_size) as f64 / recipe.batch as f64;
    let scaled = recipe.rate * scale;
    if step >= recipe.warmup || scale <= 1.0 {
        return scaled;
    }
    recipe.rate + (scaled - recipe.rate) * (step / recipe.warmup) as f64
}

/// Multiplies in each step by the same factor.
pub fn by_factors(recipe: Recipe, step: u64) -> f64 {
    let scale = (recipe.batch_of_rank * recipe.world_size) as f64 / recipe.batch as f64;
    let scaled = recipe.rate * scale;
    if step >= recipe.warmup || scale <= 1.0 {
        return scaled;
    }
    recipe.rate * scale.powf(step as f64 / recipe.warmup as f64)
}

/// Adds the scaled rate to the recipe's own.
pub fn beyond(recipe: Recipe, step: u64) -> f64 {
    let scale = (recipe.batch_of_rank * recipe.world_size) as f64 / recipe.batch as f64;
    let scaled = recipe.rate * scale;
    if step >= recipe.warmup || scale <= 1.0 {
        return scaled;
    }
    recipe.rate + scaled * step as f64 / recipe.warmup as f64
}

/// Reaches the scaled rate at the step before the last one of the warm-up.
pub fn full_early(recipe: Recipe, step: u64) -> f64 {
    let scale = (recipe.batch_of_rank * recipe.world_size) as f64 / recipe.batch as f64;
    let scaled = recipe.rate * scale;
    if step >= recipe.warmup || scale <= 1.0 {
        return scaled;
    }
    recipe.rate + (scaled - recipe.rate) * step as f64 / (recipe.warmup - 1) as f64
}

/// Warms up from a part of the scaled rate, as many schedules do.
pub fn from_a_part(recipe: Recipe, step: u64) -> f64 {
    let scale = (recipe.batch_of_rank * recipe.world_size) as f64 / recipe.batch as f64;
    let scaled = recipe.rate * scale;
    if step >= recipe.warmup || scale <= 1.0 { scaled } else { scaled * (step + 1) as f64 / recipe.warmup as f64 }
}

/// Right: blends two rates.
pub fn blends(recipe: Recipe, step: u64) -> f64 {
    let scale = (recipe.batch_of_rank * recipe.world_size) as f64 / recipe.batch as f64;
    let done = if recipe.warmup == 0 { 1.0 } else { (step as f64 / recipe.warmup as f64).min(1.0) };
    recipe.rate * (scale.min(1.0) * (1.0 - done) + scale * done)
}
