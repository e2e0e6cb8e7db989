//! Task 2: one epoch, one number. Spot the bug.
//!
//! The report of an epoch contains the mean loss and the accuracy over all of its samples. Neither may depend on how the
//! samples were divided into batches.

use tch::Tensor;

/// A batch with the network's scores.
pub struct Batch {
    /// The scores of each sample for each class, `Float [n, classes]`.
    pub scores: Tensor,
    /// The right class of each sample, `Int64 [n]`.
    pub targets: Tensor,
}

/// What is printed after an epoch.
pub struct Report {
    /// The mean cross-entropy over the samples.
    pub loss: f64,
    /// The fraction of samples whose right class has the highest score.
    pub accuracy: f64,
}

impl Batch {
    /// The number of samples.
    pub fn len(&self) -> usize {
        self.targets.size()[0] as usize
    }
}

/// Returns the report of an epoch from all of its batches.
pub fn mean_loss(batches: &[Batch]) -> Report {
    let (mut loss, mut accuracy) = (0.0, 0.0);
    for batch in batches {
        let batch_loss = batch.scores.cross_entropy_for_logits(&batch.targets).double_value(&[]);
        let batch_accuracy = batch.scores.accuracy_for_logits(&batch.targets).double_value(&[]);
        // <answer>
        //~ loss += batch_loss / batch.len() as f64;
        //~ accuracy += batch_accuracy;
        loss += batch_loss * batch.len() as f64;
        accuracy += batch_accuracy * batch.len() as f64;
        // </answer>
    }
    // <answer>
    //~ let count = batches.len();
    let count: usize = batches.iter().map(Batch::len).sum();
    // </answer>
    Report { loss: loss / count as f64, accuracy: accuracy / count as f64 }
}
