//! The confusion matrix: how many samples of each class were predicted as each class.

use std::fmt;

use c10d::{ProcessGroup, ReduceOp};
use tch::{Device, Kind, Tensor};

/// Counts of samples by true and predicted class.
#[derive(Debug)]
pub struct Confusion {
    classes: Vec<String>,
    /// `Int64 [actual, predicted]`, on the CPU.
    counts: Tensor,
}

impl Confusion {
    /// An empty matrix for these classes.
    pub fn new(classes: &[String]) -> Self {
        let n = classes.len() as i64;
        Confusion { classes: classes.to_vec(), counts: Tensor::zeros([n, n], (Kind::Int64, Device::Cpu)) }
    }

    /// Adds a batch: `logits` of shape `[n, classes]`, `targets` of shape `[n]` below the number of classes.
    pub fn add(&mut self, logits: &Tensor, targets: &Tensor) {
        let n = self.classes.len() as i64;
        let places = (targets * n + logits.argmax(-1, false)).to_device(Device::Cpu);
        self.counts += places.bincount(None::<&Tensor>, n * n).view([n, n]);
    }

    /// The sum over all ranks. A collective.
    ///
    /// # Errors
    /// The same errors as any collective.
    pub fn all_reduce(self, group: &ProcessGroup) -> c10d::Result<Self> {
        let mut counts = self.counts.to_device(group.device());
        group.all_reduce(&mut counts, ReduceOp::Sum)?;
        Ok(Confusion { counts: counts.to_device(Device::Cpu), ..self })
    }

    /// How many samples of class `actual` were predicted as class `predicted`.
    ///
    /// # Panics
    /// Panics when either is not a class.
    pub fn count(&self, actual: usize, predicted: usize) -> i64 {
        self.counts.int64_value(&[actual as i64, predicted as i64])
    }
}

/// A table with a row for each true class and a column for each predicted class.
impl fmt::Display for Confusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.classes.iter().map(String::len).max().unwrap_or(0).max(CORNER.len());
        write!(f, "{CORNER:<width$}")?;
        self.classes.iter().try_for_each(|class| write!(f, "  {class:>width$}"))?;
        for (actual, class) in self.classes.iter().enumerate() {
            write!(f, "\n{class:<width$}")?;
            (0..self.classes.len())
                .try_for_each(|predicted| write!(f, "  {:>width$}", self.count(actual, predicted)))?;
        }
        Ok(())
    }
}

/// The header of the table's first column.
const CORNER: &str = "actual \\ predicted";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_predictions_by_true_class() {
        let classes = ["C0", "C2", "C4"].map(str::to_owned);
        let mut confusion = Confusion::new(&classes);
        let logits = |predicted: &[i64]| Tensor::from_slice(predicted).one_hot(3).to_kind(Kind::Float);
        confusion.add(&logits(&[0, 0, 2]), &Tensor::from_slice(&[0i64, 1, 2]));
        confusion.add(&logits(&[1]), &Tensor::from_slice(&[1i64]));
        confusion.add(&logits(&[2]).narrow(0, 0, 0), &Tensor::from_slice::<i64>(&[]));
        let counts: Vec<_> =
            (0..3).map(|actual| [0, 1, 2].map(|predicted| confusion.count(actual, predicted))).collect();
        assert_eq!(counts, [[1, 0, 0], [1, 1, 0], [0, 0, 1]]);
        let table = confusion.to_string();
        assert_eq!(
            table.lines().next(),
            Some("actual \\ predicted                  C0                  C2                  C4"),
            "{table}"
        );
        assert_eq!(
            table.lines().nth(2),
            Some("C2                                   1                   1                   0"),
            "{table}"
        );
    }
}
