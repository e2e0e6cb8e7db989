//! Task 4: resume in the middle of an epoch.
//!
//! A training of 2 epochs on one to four ranks, in half precision, is stopped several times, each time after some batches, and starts again on
//! another number of ranks. Together the starts must train as one that is never stopped: the same batches of all ranks in the same order, with
//! the same scales and learning rates. A batch is divided among the ranks, as equally as possible.

use anyhow::Result;
use c10d::ReduceOp;
use tch::Tensor;

use crate::resumable::{Run, SCALE, Settings};

/// Trains from the snapshot, or from the beginning, to the end. Saves a snapshot after each batch.
///
/// - If a gradient overflows on any rank, no rank takes the optimizer's step, and the scale is halved.
/// - After `growth_interval` steps without an overflow in between, the scale is doubled.
/// - The schedule counts the steps that were taken.
pub fn resume(run: &mut Run) -> Result<()> {
    let Settings { epochs, windows, batch, growth_interval, .. } = run.settings;
    // <answer>
    //~ // This is right on one rank that is stopped at the end of an epoch, if nothing overflows.
    //~ let start = run.snapshot().map_or(0, |numbers| numbers[0] as u64);
    //~ let (scale, mut steps) = (SCALE, 0);
    //~ for epoch in start..epochs {
    //~     for all in run.order(epoch).chunks(batch) {
    //~         run.forward_backward(epoch, all, scale)?;
    //~         run.step(run.learning_rate(steps));
    //~         steps += 1;
    //~         run.save(&[epoch as f64]);
    //~     }
    //~ }
    //~ Ok(())
    let saved = run.snapshot().unwrap_or_else(|| vec![0.0, 0.0, 0.0, SCALE, 0.0]);
    let (start, mut at, mut steps, mut scale, mut clean) =
        (saved[0] as u64, saved[1] as usize, saved[2] as u64, saved[3], saved[4] as u64);
    for epoch in start..epochs {
        let order = run.order(epoch);
        while at < windows {
            let all = &order[at..windows.min(at + batch)];
            let mine: Vec<usize> = all.iter().skip(run.rank).step_by(run.ranks).copied().collect();
            let finite = run.forward_backward(epoch, &mine, scale)?;
            // One overflow is enough: all ranks must know of it.
            let mut overflows = Tensor::from(i64::from(!finite));
            run.group.all_reduce(&mut overflows, ReduceOp::Max)?;
            if overflows.int64_value(&[]) == 0 {
                run.step(run.learning_rate(steps));
                (steps, clean) = (steps + 1, clean + 1);
            } else {
                (scale, clean) = (scale / 2.0, 0);
            }
            if clean == growth_interval {
                (scale, clean) = (2.0 * scale, 0);
            }
            at += all.len(); // of all ranks: the next start may have another number of them
            run.save(&[epoch as f64, at as f64, steps as f64, scale, clean as f64]);
        }
        at = 0;
    }
    Ok(())
    // </answer>
}
