//! Task 5: two files, and a kill between them. Spot the bug.
//!
//! A run keeps its best model in one file and the state that it resumes from in another, the snapshot. It may be killed before either file
//! is written, or between the two. After a restart, it must end with the same best model as a run without a kill; of equal epochs, the
//! first is the best, even with an accuracy of 0. Training is reproducible to the bit, so a repeated epoch gives the same model again.

use crate::job::{Best, Killed, Snapshot, TwoFileJob};

/// Trains to the end of the last epoch, from the snapshot if there is one.
pub fn two_files(job: &mut TwoFileJob) -> Result<(), Killed> {
    // <answer>
    //~ let start = job.load_snapshot().map_or(0, |snapshot| snapshot.next_epoch);
    //~ let mut best: Option<Best> = None;
    //~ for epoch in start..job.epochs {
    //~     let accuracy = job.train_and_validate(epoch)?;
    //~     job.save_snapshot(Snapshot { next_epoch: epoch + 1, best })?;
    //~     if best.is_none_or(|best| accuracy > best.accuracy) {
    //~         best = Some(Best { epoch, accuracy });
    //~         job.save_best_model()?;
    //~     }
    //~ }
    let (start, mut best) = job.load_snapshot().map_or((0, None), |snapshot| (snapshot.next_epoch, snapshot.best));
    for epoch in start..job.epochs {
        let accuracy = job.train_and_validate(epoch)?;
        if best.is_none_or(|best| accuracy > best.accuracy) {
            best = Some(Best { epoch, accuracy });
            job.save_best_model()?;
        }
        job.save_snapshot(Snapshot { next_epoch: epoch + 1, best })?;
    }
    // </answer>
    Ok(())
}
