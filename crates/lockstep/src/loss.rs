//! Cross entropy with label smoothing, for training and evaluation; of class numbers in any shape, with an index to ignore.

use c10d::{Error, Result, from_caller};
use tch::{Kind, Reduction, Tensor};

use crate::nn::raise;

/// The target that does not count, unless another is chosen; PyTorch's default of `ignore_index`. No class has this number.
pub const IGNORE_INDEX: i64 = -100;

/// `torch.nn.CrossEntropyLoss(label_smoothing=…, ignore_index=…)`.
///
/// Targets are class numbers, `Int64`, of any shape; logits have the same shape and, as their **last** dimension, the classes: `[n]` and
/// `[n, classes]` for a classifier, `[n, t]` and `[n, t, vocabulary]` for a language model. (PyTorch wants the classes in dimension 1.)
///
/// With smoothing ε the target is 1 − ε for the right class plus ε shared equally by all classes (Szegedy et al., "Rethinking
/// the Inception Architecture", 2015), so that overconfidence is penalized. 0, the default, is plain cross entropy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrossEntropy {
    /// ε, from 0 to 1.
    pub label_smoothing: f64,
    /// Targets of this number count neither in the loss nor in its mean; [`IGNORE_INDEX`] by default.
    pub ignore_index: i64,
}

impl Default for CrossEntropy {
    fn default() -> Self {
        CrossEntropy { label_smoothing: 0.0, ignore_index: IGNORE_INDEX }
    }
}

impl CrossEntropy {
    /// The mean over all targets that count; NaN where none does, as in PyTorch.
    ///
    /// # Panics
    /// Panics when [`try_loss`](Self::try_loss) fails; inside [`DistributedDataParallel::forward_with`] that is the call's error instead.
    ///
    /// [`DistributedDataParallel::forward_with`]: crate::DistributedDataParallel::forward_with
    #[track_caller]
    pub fn loss(&self, logits: &Tensor, targets: &Tensor) -> Tensor {
        match self.reduced(logits, targets, Reduction::Mean) {
            Ok(loss) => loss,
            Err(error) => raise(error),
        }
    }

    /// As [`loss`](Self::loss).
    ///
    /// Errors: `BadArgument` with both shapes where they do not fit; libtorch's, for a target that is not a class. They name the caller's
    /// line.
    #[track_caller]
    pub fn try_loss(&self, logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
        from_caller(self.reduced(logits, targets, Reduction::Mean))
    }

    /// The sum over all targets that count: 0 where none does. Sums can be added over micro-batches and ranks, and divided once.
    #[track_caller]
    pub fn sum(&self, logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
        from_caller(self.reduced(logits, targets, Reduction::Sum))
    }

    /// How many targets count.
    pub fn count(&self, targets: &Tensor) -> i64 {
        targets.ne(self.ignore_index).sum(Kind::Int64).int64_value(&[])
    }

    fn reduced(&self, logits: &Tensor, targets: &Tensor, reduction: Reduction) -> Result<Tensor> {
        const LOSS: &str = "the cross entropy";
        let classes = check(LOSS, logits, targets)?;
        let (rows, numbers) = match targets.dim() {
            1 => (logits.shallow_clone(), targets.shallow_clone()),
            _ => (logits.reshape([-1, classes]), targets.reshape([-1])),
        };
        rows.f_cross_entropy_loss(&numbers, None::<&Tensor>, reduction, self.ignore_index, self.label_smoothing)
            .map_err(|error| {
                let (logits, targets) = (logits.size(), targets.size());
                Error::of_torch(format!("{LOSS} of logits {logits:?} with targets {targets:?}"), &error)
            })
    }

    /// The smallest possible loss: the entropy of the smoothed target. A mean below it was divided once too often.
    pub fn floor(&self, classes: usize) -> f64 {
        let shared = self.label_smoothing / classes as f64;
        let term = |p: f64| if p > 0.0 { -p * p.ln() } else { 0.0 };
        term(1.0 - self.label_smoothing + shared) + (classes - 1) as f64 * term(shared)
    }
}

/// The number of classes, where the logits have the targets' shape and one dimension more.
///
/// Errors: `BadArgument` with both shapes, and what to do.
pub(crate) fn check(operation: &str, logits: &Tensor, targets: &Tensor) -> Result<i64> {
    let (outputs, size) = (logits.size(), targets.size());
    let refused = |why: String| {
        let shapes = format!("logits of shape {outputs:?} with targets of shape {size:?}");
        Err(Error::bad_argument(operation, format!("{shapes}: {why}")))
    };
    let Some((&classes, positions)) = outputs.split_last() else {
        return refused("the logits need a last dimension, the classes".to_owned());
    };
    if positions != size {
        let of_python =
            size.len() > 1 && outputs.len() == size.len() + 1 && outputs[0] == size[0] && outputs[2..] == size[1..];
        return refused(match of_python {
            true => {
                "the classes must be the last dimension, not dimension 1 as in PyTorch: pass logits.movedim_int(1, -1)"
                    .to_owned()
            }
            false => format!(
                "these logits need targets of shape {positions:?}, one class number for each row of {classes} classes"
            ),
        });
    }
    if targets.kind() != Kind::Int64 {
        return refused(format!("the targets are of kind {:?}, class numbers of kind Int64", targets.kind()));
    }
    Ok(classes)
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
            let loss = CrossEntropy { label_smoothing, ..Default::default() }.loss(&logits, &targets).double_value(&[]);
            assert!((loss - expected).abs() < 1e-12, "{loss}");
        }
    }

    #[test]
    fn cannot_be_below_its_floor() {
        let smoothed = CrossEntropy { label_smoothing: 0.1, ..Default::default() };
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

    #[test]
    fn names_both_shapes_and_what_to_do() {
        let zeros = |size: &[i64], kind| Tensor::zeros(size, (kind, tch::Device::Cpu));
        for (logits, targets, kind, part) in [
            (
                &[6, 9][..],
                &[6, 4][..],
                Kind::Int64,
                "logits of shape [6, 9] with targets of shape [6, 4]: these logits need targets of shape [6],",
            ),
            (&[6, 9, 4], &[6, 4], Kind::Int64, "not dimension 1 as in PyTorch: pass logits.movedim_int(1, -1)"),
            (&[], &[], Kind::Int64, "need a last dimension"),
            (&[6, 9], &[6], Kind::Float, "of kind Float, class numbers of kind Int64"),
        ] {
            let error = CrossEntropy::default()
                .try_loss(&zeros(logits, Kind::Float), &zeros(targets, kind))
                .unwrap_err()
                .to_string();
            assert!(error.contains(part), "{error}");
            assert!(error.contains(&format!("(called at {}:", file!())), "{error}");
        }
        let error = CrossEntropy::default()
            .try_loss(&zeros(&[1, 3], Kind::Float), &Tensor::from_slice(&[3_i64]))
            .unwrap_err()
            .to_string();
        assert!(error.contains("of logits [1, 3] with targets [1]") && error.contains("out of bounds"), "{error}");
    }
}
