//! The drawn sets of the public tutorials: linear regression, and the random set of the single-GPU tutorial.
//!
//! The rule behind each set is public, so that a lab can print how far the learned weights are from it.

use anyhow::ensure;
use tch::{Device, Kind, Tensor};

use crate::data::dataset::{Batch, Dataset, check_indices, gather};
use crate::rng::KeyedRng;

/// Keeps the rule's random stream apart from the samples'.
const RULE: u64 = u64::from_be_bytes(*b"linrule\0");
/// Keeps this set's samples apart from other sets of the same seed.
const SAMPLE: u64 = u64::from_be_bytes(*b"linsampl");

/// `count` samples of `y = x · w + b + noise`, with `x` near normal (mean 0, variance 1).
///
/// A batch of `n` has inputs `Float [n, features]` and targets `Float [n, 1]`. The rule depends on the seed only,
/// sample `i` on `(seed, i)` only: a longer set begins with the shorter one.
#[derive(Debug, Clone)]
pub struct LinearRegression {
    inputs: Vec<f32>,
    targets: Vec<f32>,
    weights: Vec<f32>,
    bias: f32,
}

impl LinearRegression {
    /// Draws the rule (weights and bias uniform in `[-5, 5)`) and `count` samples of `features` inputs; `noise` is the
    /// standard deviation of what is added to each target.
    pub fn new(seed: u64, count: usize, features: usize, noise: f32) -> Self {
        let mut rule = KeyedRng::new(&[seed, RULE]);
        let bias = rule.between(-5.0, 5.0);
        let weights: Vec<f32> = (0..features).map(|_| rule.between(-5.0, 5.0)).collect();
        let mut set =
            Self { inputs: Vec::with_capacity(count * features), targets: Vec::with_capacity(count), weights, bias };
        (0..count).for_each(|index| set.push(seed, index, noise));
        set
    }

    /// The true weights, `[features]`.
    pub fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// The true bias.
    pub fn bias(&self) -> f32 {
        self.bias
    }

    /// The Euclidean distance of a model's `weight` (`[1, features]` or `[features]`) and `bias` (one number) from the true
    /// ones. Any floating kind, any device.
    pub fn distance(&self, weight: &Tensor, bias: &Tensor) -> anyhow::Result<f64> {
        let (learned, constant) = (to_vec(weight)?, to_vec(bias)?);
        ensure!(
            learned.len() == self.weights.len() && constant.len() == 1,
            "compare {} weights and {} biases with a rule of {} weights and 1 bias: give the model's weight and bias",
            learned.len(),
            constant.len(),
            self.weights.len(),
        );
        let truth = self.weights.iter().chain([&self.bias]);
        let squares = learned.iter().chain(&constant).zip(truth).map(|(a, b)| (a - f64::from(*b)).powi(2));
        Ok(squares.sum::<f64>().sqrt())
    }

    fn push(&mut self, seed: u64, index: usize, noise: f32) {
        let mut rng = KeyedRng::new(&[seed, SAMPLE, index as u64]);
        let mut target = self.bias;
        for weight in &self.weights {
            let input = rng.normal();
            self.inputs.push(input);
            target += weight * input;
        }
        self.targets.push(target + noise * rng.normal());
    }
}

impl Dataset for LinearRegression {
    fn len(&self) -> usize {
        self.targets.len()
    }

    fn batch(&self, _epoch: u64, indices: &[usize]) -> anyhow::Result<Batch> {
        check_indices(self.len(), indices)?;
        let inputs = gather(&self.inputs, self.weights.len(), indices);
        Ok(Batch { inputs, targets: gather(&self.targets, 1, indices) })
    }
}

fn to_vec(tensor: &Tensor) -> anyhow::Result<Vec<f64>> {
    Ok(Vec::try_from(tensor.detach().to_device(Device::Cpu).to_kind(Kind::Double).reshape([-1]))?)
}

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

    #[test]
    fn draws_the_same_rule_and_samples_whatever_the_count() {
        let (short, long) = (LinearRegression::new(1, 2, 3, 0.1), LinearRegression::new(1, 50, 3, 0.1));
        assert_eq!((short.weights(), short.bias()), (long.weights(), long.bias()));
        assert_eq!((&short.inputs[..], &short.targets[..]), (&long.inputs[..6], &long.targets[..2]));
        assert_ne!(LinearRegression::new(2, 2, 3, 0.1).weights(), short.weights());
    }

    #[test]
    fn follows_the_rule_exactly_without_noise() {
        let set = LinearRegression::new(7, 20, 4, 0.0);
        let batch = set.batch(0, &[19, 0, 5]).unwrap();
        assert_eq!((batch.inputs.size(), batch.targets.size()), (vec![3, 4], vec![3, 1]));
        let exact = batch.inputs.matmul(&Tensor::from_slice(set.weights()).view([4, 1])) + f64::from(set.bias());
        assert!(exact.allclose(&batch.targets, 1e-5, 1e-5, false));
    }

    #[test]
    fn spreads_the_targets_by_the_noise_asked_for() {
        let set = LinearRegression::new(7, 4_000, 1, 0.5);
        let all = set.batch(0, &(0..4_000).collect::<Vec<_>>()).unwrap();
        let miss = all.targets - all.inputs * f64::from(set.weights()[0]) - f64::from(set.bias());
        let spread = miss.square().mean(Kind::Float).double_value(&[]).sqrt();
        assert!((spread - 0.5).abs() < 0.03, "{spread}");
    }

    #[test]
    fn measures_the_distance_to_the_true_weights() {
        let set = LinearRegression::new(7, 1, 2, 0.0);
        let (weight, bias) = (Tensor::from_slice(set.weights()).view([1, 2]), Tensor::from_slice(&[set.bias()]));
        assert_eq!(set.distance(&weight, &bias).unwrap(), 0.0);
        let far = set.distance(&(weight + 3.0), &(bias - 4.0)).unwrap();
        assert!((far - 34f64.sqrt()).abs() < 1e-5, "{far}");
    }

    #[test]
    fn rejects_weights_of_another_model() {
        let set = LinearRegression::new(7, 1, 2, 0.0);
        let ones = |n| Tensor::ones([n], (Kind::Float, Device::Cpu));
        assert!(set.distance(&ones(3), &ones(1)).unwrap_err().to_string().contains("3 weights"));
        assert!(set.distance(&ones(2), &ones(2)).unwrap_err().to_string().contains("2 biases"));
    }

    #[test]
    fn rejects_an_index_past_the_end() {
        let error = LinearRegression::new(0, 4, 2, 0.0).batch(0, &[1, 8]).unwrap_err().to_string();
        assert!(error.starts_with("take sample 8 of a data set of 4"), "{error}");
    }

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
    fn rejects_an_index_past_the_end_of_the_toy_set() {
        let error = Toy::new(0, 4).batch(0, &[4]).unwrap_err().to_string();
        assert!(error.starts_with("take sample 4 of a data set of 4"), "{error}");
    }
}
