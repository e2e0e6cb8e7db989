//! Means of the batches' means.

use crate::mean_loss::{Batch, Report};

pub fn mean_loss(batches: &[Batch]) -> Report {
    let (mut loss, mut accuracy) = (0.0, 0.0);
    for batch in batches {
        loss += batch.scores.cross_entropy_for_logits(&batch.targets).double_value(&[]);
        accuracy += batch.scores.accuracy_for_logits(&batch.targets).double_value(&[]);
    }
    Report { loss: loss / batches.len() as f64, accuracy: accuracy / batches.len() as f64 }
}
