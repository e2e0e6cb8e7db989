//! Adds means up and divides by the samples.

use crate::mean_loss::{Batch, Report};

pub fn mean_loss(batches: &[Batch]) -> Report {
    let (mut loss, mut accuracy, mut samples) = (0.0, 0.0, 0.0);
    for batch in batches {
        loss += batch.scores.cross_entropy_for_logits(&batch.targets).double_value(&[]);
        accuracy += batch.scores.accuracy_for_logits(&batch.targets).double_value(&[]);
        samples += batch.len() as f64;
    }
    Report { loss: loss / samples, accuracy: accuracy / samples }
}
