//! Task 5: two files, and a kill between them. Spot the bug.
//!
//! A run keeps its best model in one file, and what it needs to go on in another, the snapshot. It may be killed before either is
//! written, or between the two. Started again, it must end with the best model of a run that nobody killed. Training is the same
//! to the bit each time, so an epoch that is done again gives the same model again.

use crate::job::{Best, Job, Killed, Snapshot};

/// Trains to the end of the last epoch, from the snapshot if there is one.
pub fn two_files(job: &mut Job) -> Result<(), Killed> {
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
