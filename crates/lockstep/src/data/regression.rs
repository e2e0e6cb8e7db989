//! Linear regression, the first set that the public DDP tutorials train on: `y = x · w + b + noise`.
//!
//! The true weights are public, so that a lab can print how far the learned ones are from them.

use anyhow::ensure;
use tch::{Device, Kind, Tensor};

use super::dataset::{Batch, Dataset, check_indices, gather};
use super::rng::KeyedRng;

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
    ///
    /// # Errors
    /// Panics when the number of weights or biases is not the rule's.
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

#[cfg(test)]
mod tests {
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
}
