//! A snapshot only with a best model, as the tutorial's one file: a resume goes back to the best epoch.

use crate::job::{Best, Job, Killed, Snapshot};

pub fn two_files(job: &mut Job) -> Result<(), Killed> {
    let (start, mut best) = job.load_snapshot().map_or((0, None), |snapshot| (snapshot.next_epoch, snapshot.best));
    for epoch in start..job.epochs {
        let accuracy = job.train_and_validate(epoch)?;
        if best.is_none_or(|best| accuracy > best.accuracy) {
            best = Some(Best { epoch, accuracy });
            job.save_best_model()?;
            job.save_snapshot(Snapshot { next_epoch: epoch + 1, best })?;
        }
    }
    Ok(())
}
