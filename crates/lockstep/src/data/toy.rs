//! The random set of the single-GPU tutorial, with a learnable target.
//!
//! In the tutorial, each sample is twenty random numbers and one *random* target, the model is `Linear(20, 1)`, and the loss is
//! cross-entropy over its single output. Softmax over one class is always 1, so the loss and its gradient are always 0: the
//! weights never change, and a broken all-reduce looks like a working one. With another loss, a random target would still leave
//! nothing to learn. Here the inputs are unchanged, and the target follows a fixed rule that `Linear(20, 1)` can represent
//! exactly, plus a little noise. So the mean squared error must fall and ends near [`Toy::NOISE`]², and the learned weights can
//! be compared with the rule.

use tch::Tensor;

use super::dataset::{Batch, Dataset, check_indices, gather};
use super::rng::KeyedRng;

/// Keeps this set's random streams apart from other sets of the same seed.
const STREAM: u64 = u64::from_be_bytes(*b"toy set\0");

/// `count` samples: 20 inputs, each uniform in `[0, 1)`, and `target = inputs · weights + BIAS + noise`.
///
/// A batch of `n` has inputs `Float [n, 20]` and targets `Float [n, 1]`. Sample `i` depends on `(seed, i)` only.
///
/// The rule does not depend on the seed: all ranks and all runs learn the same one. Its weights have a positive sum,
/// so that the loss falls visibly (from about 30 to below 1) even with the tutorial's small learning rate of 1e-3.
#[derive(Debug, Clone)]
pub struct Toy {
    inputs: Vec<f32>,
    targets: Vec<f32>,
}

impl Toy {
    /// How many inputs a sample has, as in the tutorial.
    pub const FEATURES: usize = 20;
    /// How many samples the tutorial draws.
    pub const TUTORIAL_LEN: usize = 2048;
    /// The constant term of the rule.
    pub const BIAS: f32 = 0.5;
    /// The standard deviation of the noise on the targets; its square is the lowest possible mean squared error.
    pub const NOISE: f32 = 0.02;

    /// Draws `count` samples.
    pub fn new(seed: u64, count: usize) -> Self {
        let weights = Self::weights();
        let mut set = Self { inputs: Vec::with_capacity(count * Self::FEATURES), targets: Vec::with_capacity(count) };
        for index in 0..count {
            let mut rng = KeyedRng::new(&[seed, STREAM, index as u64]);
            let row: [f32; Self::FEATURES] = std::array::from_fn(|_| rng.uniform());
            let exact: f32 = row.iter().zip(&weights).map(|(x, w)| x * w).sum();
            set.inputs.extend(row);
            set.targets.push(exact + Self::BIAS + Self::NOISE * rng.normal());
        }
        set
    }

    /// The weights of the rule: -0.5, -0.4, … 1.4.
    pub fn weights() -> [f32; Self::FEATURES] {
        std::array::from_fn(|feature| (feature as f32 - 5.0) / 10.0)
    }
}

impl Dataset for Toy {
    fn len(&self) -> usize {
        self.targets.len()
    }

    fn batch(&self, _epoch: u64, indices: &[usize]) -> anyhow::Result<Batch> {
        check_indices(self.len(), indices)?;
        let inputs: Tensor = gather(&self.inputs, Self::FEATURES, indices);
        Ok(Batch { inputs, targets: gather(&self.targets, 1, indices) })
    }
}

#[cfg(test)]
mod tests {
    use tch::{Kind, Reduction};

    use super::*;

    fn whole(set: &Toy) -> Batch {
        set.batch(0, &(0..set.len()).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn draws_the_same_sample_whatever_the_count() {
        let (short, long) = (Toy::new(5, 3), Toy::new(5, 300));
        let (a, b) = (short.batch(0, &[2]).unwrap(), long.batch(9, &[2]).unwrap());
        assert_eq!((a.inputs, a.targets), (b.inputs, b.targets));
        assert_ne!(Toy::new(6, 3).inputs, short.inputs);
    }

    #[test]
    fn has_the_shapes_and_the_range_of_the_tutorial() {
        let all = whole(&Toy::new(0, Toy::TUTORIAL_LEN));
        assert_eq!((all.inputs.size(), all.inputs.kind()), (vec![2048, 20], Kind::Float));
        assert_eq!((all.targets.size(), all.targets.kind()), (vec![2048, 1], Kind::Float));
        assert!(all.inputs.min().double_value(&[]) >= 0.0 && all.inputs.max().double_value(&[]) < 1.0);
    }

    #[test]
    fn can_be_learned_by_one_linear_layer_down_to_the_noise() {
        let all = whole(&Toy::new(0, Toy::TUTORIAL_LEN));
        let with_one = Tensor::cat(&[all.inputs, Tensor::ones([2048, 1], (Kind::Float, tch::Device::Cpu))], 1);
        let square = with_one.tr().matmul(&with_one);
        let solution = Tensor::linalg_solve(&square, &with_one.tr().matmul(&all.targets), true);
        let want: Vec<f32> = Toy::weights().into_iter().chain([Toy::BIAS]).collect();
        let furthest = (solution.view([21]) - Tensor::from_slice(&want)).abs().max().double_value(&[]);
        assert!(furthest < 0.01, "least squares misses a weight by {furthest}");
        let floor = with_one.matmul(&solution).mse_loss(&all.targets, Reduction::Mean).double_value(&[]);
        assert!((floor.sqrt() - f64::from(Toy::NOISE)).abs() < 0.002, "noise of {}", floor.sqrt());
    }

    #[test]
    fn falls_below_one_with_the_learning_rate_of_the_tutorial() {
        let set = Toy::new(0, Toy::TUTORIAL_LEN);
        let (mut weight, mut bias) = (Tensor::zeros([20, 1], (Kind::Float, tch::Device::Cpu)), 0.0);
        let mut losses = Vec::new();
        for step in 0..640 {
            let first = step % 64 * 32;
            let batch = set.batch(0, &(first..first + 32).collect::<Vec<_>>()).unwrap();
            let miss = batch.inputs.matmul(&weight) + bias - batch.targets;
            losses.push(miss.square().mean(Kind::Float).double_value(&[]));
            weight -= batch.inputs.tr().matmul(&miss) * (2.0 / 32.0 * 1e-3);
            bias -= 2e-3 * miss.mean(Kind::Float).double_value(&[]);
        }
        assert!(losses[0] > 20.0 && losses[639] < 1.0, "{} to {}", losses[0], losses[639]);
    }

    #[test]
    fn rejects_an_index_past_the_end() {
        let error = Toy::new(0, 4).batch(0, &[4]).unwrap_err().to_string();
        assert!(error.starts_with("take sample 4 of a data set of 4"), "{error}");
    }
}
