//! Task 3: a rate for a larger batch.
//!
//! The linear scaling rule (Goyal et al., 2017): a recipe has a rate that was made for batches of so many pictures. In a batch that is
//! k times as large the gradient is the mean over k times as many pictures, and the rate is multiplied by k. The first steps
//! cannot bear that: training begins with the recipe's own rate, which rises in a straight line, and from step `warmup` on
//! it is the scaled one. Where the batch is smaller than the recipe's there is nothing to warm up to: the scaled rate is smaller, and
//! constant.

/// What the rate depends on.
#[derive(Clone, Copy)]
pub struct Recipe {
    /// The recipe's learning rate,
    pub rate: f64,
    /// made for batches of so many pictures over all ranks.
    pub batch: usize,
    /// Pictures in a batch of one rank of this run.
    pub batch_of_rank: usize,
    /// How many ranks this run has.
    pub world_size: usize,
    /// The first step that is trained with the whole scaled rate.
    pub warmup: u64,
}

/// The learning rate of a step, counted from 0.
pub fn learning_rate(recipe: Recipe, step: u64) -> f64 {
    // A function of the step alone: there is nothing to save.
    todo!("scale the rate, and warm it up")
}
