//! Task 1: where to continue. Spot the bug.
//!
//! A run saves a snapshot every few steps, and not more often, since a save takes time. If it is killed at any moment and started again, it
//! must end with a model that was trained exactly once with every step of every epoch, in order. The steps since the last snapshot are
//! repeated, because the loaded model has not seen them. Other steps are not repeated.

use crate::snapshots::{KillableJob, Killed};

/// Trains to the end of the last epoch, from the snapshot if there is one.
pub fn next_step(job: &mut KillableJob) -> Result<(), Killed> {
    let (first_epoch, first_step) = job.load().unwrap_or((0, 0));
    for epoch in first_epoch..job.epochs {
        let begin = if epoch == first_epoch { first_step } else { 0 };
        for step in begin..job.steps {
            job.train(epoch, step)?;
            if (step + 1) % job.save_every == 0 {
                job.save(epoch, step);
            }
        }
    }
    Ok(())
}
