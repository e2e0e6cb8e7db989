//! Answers to `mean_loss`: wrong ones, and unusual right ones.

use lockstep_answers::given;
use tch::Tensor;

use crate::mean_loss::{Batch, Report};

/// The given program: divides a mean by the batch's length again, then averages over batches.
#[given]
pub fn twice() {}

/// Adds up means and divides by the number of samples.
#[given]
#[edit(batch_loss / batch.len() as f64 => batch_loss)]
#[edit(let count = batches.len() => let count: usize = batches.iter().map(Batch::len).sum())]
pub fn added() {}

/// Takes the mean of the batches' means.
#[given]
#[edit(batch_loss / batch.len() as f64 => batch_loss)]
pub fn means() {}

/// Fixes only the loss.
pub fn accuracy(batches: &[Batch]) -> Report {
    let (mut loss, mut accuracy, mut samples) = (0.0, 0.0, 0.0);
    for batch in batches {
        let length = batch.len() as f64;
        loss += batch.scores.cross_entropy_for_logits(&batch.targets).double_value(&[]) * length;
        accuracy += batch.scores.accuracy_for_logits(&batch.targets).double_value(&[]);
        samples += length;
    }
    Report { loss: loss / samples, accuracy: accuracy / batches.len() as f64 }
}

/// Right: concatenates all batches.
pub fn joined(batches: &[Batch]) -> Report {
    let scores = Tensor::cat(&batches.iter().map(|batch| &batch.scores).collect::<Vec<_>>(), 0);
    let targets = Tensor::cat(&batches.iter().map(|batch| &batch.targets).collect::<Vec<_>>(), 0);
    let loss = scores.cross_entropy_for_logits(&targets).double_value(&[]);
    Report { loss, accuracy: scores.accuracy_for_logits(&targets).double_value(&[]) }
}

/// Takes each batch to be as long as the first.
pub fn first_length(batches: &[Batch]) -> Report {
    let (mut loss, mut accuracy, mut samples): (f64, f64, f64) = (0.0, 0.0, 0.0);
    let each = batches.first().map_or(0, Batch::len) as f64;
    for batch in batches {
        loss += batch.scores.cross_entropy_for_logits(&batch.targets).double_value(&[]) * batch.len() as f64;
        accuracy += batch.scores.accuracy_for_logits(&batch.targets).double_value(&[]) * batch.len() as f64;
        samples += each;
    }
    Report { loss: loss / samples, accuracy: accuracy / samples }
}
