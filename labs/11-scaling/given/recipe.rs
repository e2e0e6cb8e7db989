//! A recipe for training with a small batch, and a training with a large one. You do not change this file.

use anyhow::Result;
use c10d::{ProcessGroup, ReduceOp};
use serde::Deserialize;
use tch::Tensor;

/// What worked on one rank, and the ranks on which it is to work.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Recipe {
    /// The recipe's learning rate.
    pub lr: f64,
    /// The recipe's batch.
    pub batch: usize,
    /// The batch of each rank now.
    pub batch_of_a_rank: usize,
    /// The number of ranks now.
    pub ranks: usize,
    /// Steps in which the rate is to rise.
    pub warm_up: u64,
}

/// Weights of the two layers at the start: far from the solution, where the loss is steep.
const START: f64 = 3.0;

/// Trains the smallest network with two layers, y = b·(a·x), to answer x: the loss is steep at the start and flat near the end, as
/// those of large networks are. `samples` are the rank's, for each step `batch_of_a_rank` of them. Returns the last step's loss over all
/// ranks.
pub fn train(group: &ProcessGroup, recipe: &Recipe, samples: &[f64], rate: impl Fn(u64) -> f64) -> Result<f64> {
    let (mut a, mut b, mut loss) = (START, START, f64::NAN);
    for (step, batch) in (0..).zip(samples.chunks(recipe.batch_of_a_rank)) {
        let mean = |of: &dyn Fn(f64, f64) -> f64| {
            batch.iter().map(|x| of(*x, (a * b - 1.0) * x)).sum::<f64>() / batch.len() as f64
        };
        let sums = [
            mean(&|x, error| 2.0 * error * b * x),
            mean(&|x, error| 2.0 * error * a * x),
            mean(&|_, error| error * error),
        ];
        let mut sums = Tensor::from_slice(&sums);
        group.all_reduce(&mut sums, ReduceOp::Sum)?;
        let mean = |which| sums.double_value(&[which]) / group.size().get() as f64;
        (a, b, loss) = (a - rate(step) * mean(0), b - rate(step) * mean(1), mean(2));
    }
    Ok(loss)
}
