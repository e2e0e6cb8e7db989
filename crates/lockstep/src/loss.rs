//! Cross entropy with label smoothing, for training and evaluation.

use tch::{Reduction, Tensor};

/// The class number that PyTorch's cross entropy ignores (`ignore_index`); no class has it.
const NO_CLASS: i64 = -100;

/// `torch.nn.CrossEntropyLoss(label_smoothing=…)`: the mean over a batch.
///
/// With smoothing ε the target is 1 − ε for the right class plus ε shared equally by all classes (Szegedy et al., "Rethinking
/// the Inception Architecture", 2015), so that overconfidence does not pay off. 0, the default, is plain cross entropy.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CrossEntropy {
    /// ε, from 0 to 1.
    pub label_smoothing: f64,
}

impl CrossEntropy {
    /// The loss of `logits`, shape `[n, classes]`, against class numbers, shape `[n]`. Without samples it is NaN, as in
    /// PyTorch.
    pub fn loss(&self, logits: &Tensor, targets: &Tensor) -> Tensor {
        logits.cross_entropy_loss(targets, None::<&Tensor>, Reduction::Mean, NO_CLASS, self.label_smoothing)
    }

    /// The smallest possible loss: the entropy of the smoothed target. A mean below it was divided once too often.
    pub fn floor(&self, classes: usize) -> f64 {
        let shared = self.label_smoothing / classes as f64;
        let term = |p: f64| if p > 0.0 { -p * p.ln() } else { 0.0 };
        term(1.0 - self.label_smoothing + shared) + (classes - 1) as f64 * term(shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_pytorchs_loss() {
        let logits = Tensor::from_slice(&[2f64, 0.0, -1.0, 0.5, 1.5, 0.0]).view([2, 3]);
        let targets = Tensor::from_slice(&[0i64, 2]);
        // torch.nn.CrossEntropyLoss(label_smoothing=e)(logits, targets), PyTorch 2.11.
        for (label_smoothing, expected) in [(0.0, 1.0671074018321154), (0.1, 1.1171074018321154)] {
            let loss = CrossEntropy { label_smoothing }.loss(&logits, &targets).double_value(&[]);
            assert!((loss - expected).abs() < 1e-12, "{loss}");
        }
    }

    #[test]
    fn cannot_be_below_its_floor() {
        let smoothed = CrossEntropy { label_smoothing: 0.1 };
        let floor = smoothed.floor(3);
        assert!((floor - 0.29113983883196504).abs() < 1e-12, "{floor}");
        // The logits that reach it: the logarithms of the smoothed target.
        let best = Tensor::from_slice(&[0.9 + 0.1 / 3.0, 0.1 / 3.0, 0.1 / 3.0]).log().view([1, 3]);
        let target = Tensor::from_slice(&[0i64]);
        let losses: Vec<f64> =
            [0.5, 1.0, 2.0].map(|sharper| smoothed.loss(&(&best * sharper), &target).double_value(&[])).into();
        assert!((losses[1] - floor).abs() < 1e-12 && losses[0] > floor && losses[2] > floor, "{losses:?}");
        assert_eq!(CrossEntropy::default().floor(3), 0.0);
    }
}
