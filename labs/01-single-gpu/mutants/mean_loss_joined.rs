//! Right, in its own way: makes one batch of all.

use tch::Tensor;

use crate::mean_loss::{Batch, Report};

pub fn mean_loss(batches: &[Batch]) -> Report {
    let scores = Tensor::cat(&batches.iter().map(|batch| &batch.scores).collect::<Vec<_>>(), 0);
    let targets = Tensor::cat(&batches.iter().map(|batch| &batch.targets).collect::<Vec<_>>(), 0);
    let loss = scores.cross_entropy_for_logits(&targets).double_value(&[]);
    Report { loss, accuracy: scores.accuracy_for_logits(&targets).double_value(&[]) }
}
