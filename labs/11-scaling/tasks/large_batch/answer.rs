//! Task 7: large batches.
//!
//! With k times as many samples in a step, an epoch has one k-th of the steps. The linear scaling rule lets each step go k times as far:
//! it multiplies the learning rate by k. At the start, where the loss is steep, such a step would diverge, so the rate begins
//! with the recipe's own and rises by the same amount in each step of the warm-up. (Goyal et al., "Accurate, Large Minibatch SGD", 2017.)

use crate::training::Recipe;

/// The learning rate of a step, counted from 0: the recipe's in step 0, the scaled one from step `warm_up` on. `warm_up` may be 0: then
/// it is the scaled one from step 0 on.
pub fn large_batch(recipe: &Recipe, step: u64) -> f64 {
    // <answer>
    //~ todo!("scale the rate to the batch of all ranks, and let it rise in the first steps")
    let times = (recipe.batch_of_a_rank * recipe.ranks) as f64 / recipe.batch as f64;
    let risen = if step < recipe.warm_up { step as f64 / recipe.warm_up as f64 } else { 1.0 };
    recipe.lr * (1.0 + (times - 1.0) * risen)
    // </answer>
}
