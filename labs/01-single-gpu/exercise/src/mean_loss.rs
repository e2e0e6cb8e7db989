//! Task 2: one epoch, one number. Spot the bug.
//!
//! The report of an epoch: the mean loss and the accuracy over all of its samples. Neither may depend on how the samples were
//! cut into batches.

use tch::Tensor;

/// A batch, and what the network made of it.
pub struct Batch {
    /// Scores of each sample for each class, `Float [n, classes]`.
    pub scores: Tensor,
    /// The right class of each sample, `Int64 [n]`.
    pub targets: Tensor,
}

/// What is printed of an epoch.
pub struct Report {
    /// The mean cross-entropy of a sample.
    pub loss: f64,
    /// Which share of the samples has its right class in first place.
    pub accuracy: f64,
}

impl Batch {
    /// How many samples it has.
    pub fn len(&self) -> usize {
        self.targets.size()[0] as usize
    }
}

/// The report of all batches of an epoch.
pub fn mean_loss(batches: &[Batch]) -> Report {
    let (mut loss, mut accuracy) = (0.0, 0.0);
    for batch in batches {
        let batch_loss = batch.scores.cross_entropy_for_logits(&batch.targets).double_value(&[]);
        let batch_accuracy = batch.scores.accuracy_for_logits(&batch.targets).double_value(&[]);
        loss += batch_loss / batch.len() as f64;
        accuracy += batch_accuracy;
    }
    let count = batches.len();
    Report { loss: loss / count as f64, accuracy: accuracy / count as f64 }
}
