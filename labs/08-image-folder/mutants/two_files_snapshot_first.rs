//! The best accuracy survives, but a kill between the two files loses the best model.

use crate::job::{Best, Job, Killed, Snapshot};

pub fn two_files(job: &mut Job) -> Result<(), Killed> {
    let (start, mut best) = job.load_snapshot().map_or((0, None), |snapshot| (snapshot.next_epoch, snapshot.best));
    for epoch in start..job.epochs {
        let accuracy = job.train_and_validate(epoch)?;
        let better = best.is_none_or(|best| accuracy > best.accuracy);
        if better {
            best = Some(Best { epoch, accuracy });
        }
        job.save_snapshot(Snapshot { next_epoch: epoch + 1, best })?;
        if better {
            job.save_best_model()?;
        }
    }
    Ok(())
}
