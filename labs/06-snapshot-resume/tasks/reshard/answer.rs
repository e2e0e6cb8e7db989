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
    // <answer>
    //~ // This resumes well as long as the number of ranks stays the same.
    //~ let (first, done) = run.snapshot().map_or((0, 0), |numbers| (numbers[0], numbers[1] as usize));
    //~ for epoch in first..run.settings.epochs {
    //~     let share: Vec<usize> = run.order(epoch).into_iter().skip(run.rank).step_by(run.ranks).collect();
    //~     let begin = if epoch == first { done } else { 0 };
    //~     for (step, batch) in share.chunks(run.settings.batch_size).enumerate().skip(begin) {
    //~         run.train(epoch, batch)?;
    //~         run.save(&[epoch, step as u64 + 1]);
    //~     }
    //~ }
    //~ Ok(())
    let (first, done) = run.snapshot().map_or((0, 0), |numbers| (numbers[0], numbers[1] as usize));
    for epoch in first..run.settings.epochs {
        // The samples that all ranks together have taken: the beginning of the epoch's order, whichever rank took them.
        let mut taken = if epoch == first { done } else { 0 };
        let left = run.order(epoch).split_off(taken);
        // A step of all ranks. If each rank cut its own share into batches, a rank with a longer share would have one more step.
        for step in left.chunks(run.settings.batch_size * run.ranks) {
            let batch: Vec<usize> = step.iter().copied().skip(run.rank).step_by(run.ranks).collect();
            run.train(epoch, &batch)?;
            taken += step.len();
            run.save(&[epoch, taken as u64]);
        }
    }
    Ok(())
    // </answer>
}
