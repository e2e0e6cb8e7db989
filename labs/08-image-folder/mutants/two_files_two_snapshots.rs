//! Right, with a write too many: a snapshot before the best model that goes on from this epoch, and one after it.

use crate::job::{Best, Job, Killed, Snapshot};

pub fn two_files(job: &mut Job) -> Result<(), Killed> {
    let snapshot = job.load_snapshot().unwrap_or(Snapshot { next_epoch: 0, best: None });
    let mut best = snapshot.best;
    for epoch in snapshot.next_epoch..job.epochs {
        let accuracy = job.train_and_validate(epoch)?;
        if best.is_none_or(|best| best.accuracy < accuracy) {
            job.save_snapshot(Snapshot { next_epoch: epoch, best })?;
            job.save_best_model()?;
            best = Some(Best { epoch, accuracy });
        }
        job.save_snapshot(Snapshot { next_epoch: epoch + 1, best })?;
    }
    Ok(())
}
