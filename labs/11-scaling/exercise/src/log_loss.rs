//! Task 3: a log that costs nothing. Spot the bug.
//!
//! A training logs the mean of the loss over all ranks. The program below is right, but slow: in each step all ranks stop twice. A line
//! of the log covers `every` steps, so one exchange per line is enough.

use anyhow::Result;
use c10d::{ProcessGroup, ReduceOp};
use tch::Tensor;

/// Returns the log, a mean over all ranks for each `every` steps, on every rank. `losses` are this rank's, one for each step; all ranks have
/// the same number. The last line may cover fewer steps. At most one operation for a line, in this group only.
pub fn log_loss(group: &ProcessGroup, losses: &[f64], every: usize) -> Result<Vec<f64>> {
    let ranks = group.size().get() as f64;
    let mut log = Vec::new();
    for losses in losses.chunks(every) {
        let mut sum = 0.0;
        for loss in losses {
            let mut loss = Tensor::from_slice(&[*loss]);
            group.all_reduce(&mut loss, ReduceOp::Sum)?;
            group.barrier()?;
            sum += loss.double_value(&[0]);
        }
        log.push(sum / (ranks * losses.len() as f64));
    }
    Ok(log)
}
