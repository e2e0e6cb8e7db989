//! Only the loss is mended.

use crate::mean_loss::{Batch, Report};

pub fn mean_loss(batches: &[Batch]) -> Report {
    let (mut loss, mut accuracy, mut samples) = (0.0, 0.0, 0.0);
    for batch in batches {
        let length = batch.len() as f64;
        loss += batch.scores.cross_entropy_for_logits(&batch.targets).double_value(&[]) * length;
        accuracy += batch.scores.accuracy_for_logits(&batch.targets).double_value(&[]);
        samples += length;
    }
    Report { loss: loss / samples, accuracy: accuracy / batches.len() as f64 }
}
