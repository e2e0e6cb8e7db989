//! Task 3: a rate for a larger batch.
//!
//! The linear scaling rule (Goyal et al., 2017): a recipe's learning rate was chosen for a certain batch size. If the batch is k
//! times as large, the gradient is the mean over k times as many pictures, and the rate is multiplied by k. This rate is too
//! large for the first steps. So training starts with the recipe's own rate, which rises linearly, and from step `warmup` on
//! uses the scaled rate. If the batch is smaller than the recipe's, there is no warm-up: the rate is constant at the scaled,
//! smaller value.

/// What the rate depends on.
#[derive(Clone, Copy)]
pub struct Recipe {
    /// The recipe's learning rate.
    pub rate: f64,
    /// The number of pictures in the recipe's batch, over all ranks.
    pub batch: usize,
    /// The number of pictures in the batch of one rank of this run.
    pub batch_of_rank: usize,
    /// The number of ranks of this run.
    pub world_size: usize,
    /// The first step that uses the full scaled rate.
    pub warmup: u64,
}

/// Returns the learning rate of a step. Steps are counted from 0.
pub fn learning_rate(recipe: Recipe, step: u64) -> f64 {
    // <answer>
    //~ // The rate depends only on the step, so a snapshot need not contain it.
    //~ todo!("scale the rate and warm it up")
    let scale = (recipe.batch_of_rank * recipe.world_size) as f64 / recipe.batch as f64;
    let scaled = recipe.rate * scale;
    if step >= recipe.warmup || scale <= 1.0 {
        return scaled;
    }
    recipe.rate + (scaled - recipe.rate) * step as f64 / recipe.warmup as f64
    // </answer>
}
