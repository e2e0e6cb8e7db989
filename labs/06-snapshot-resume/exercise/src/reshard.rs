//! Task 6: resume on another number of ranks. Spot the bug.
//!
//! A job saves after each step. It is stopped in the middle of an epoch and started again, perhaps with more ranks, perhaps with fewer,
//! and perhaps several times in one epoch. In each epoch, all starts together must train the model with each sample once. `batch_size`
//! counts the samples of one rank, so a step of three ranks has more samples than a step of two. All ranks take each step together:
//! in the last one of an epoch, a rank may have fewer samples than others, or none. A job may also be stopped right after that step.

use anyhow::Result;

use crate::snapshots::Run;

/// Trains to the end of the last epoch, from the snapshot if there is one, on `run.ranks` ranks.
pub fn reshard(run: &mut Run) -> Result<()> {
    // This resumes well as long as the number of ranks stays the same.
    let (first, done) = run.snapshot().map_or((0, 0), |numbers| (numbers[0], numbers[1] as usize));
    for epoch in first..run.settings.epochs {
        let share: Vec<usize> = run.order(epoch).into_iter().skip(run.rank).step_by(run.ranks).collect();
        let begin = if epoch == first { done } else { 0 };
        for (step, batch) in share.chunks(run.settings.batch_size).enumerate().skip(begin) {
            run.train(epoch, batch)?;
            run.save(&[epoch, step as u64 + 1]);
        }
    }
    Ok(())
}
