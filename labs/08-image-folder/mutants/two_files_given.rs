//! The snapshot first, and the best accuracy is forgotten in a resume. As it is given.

use crate::job::{Best, Job, Killed, Snapshot};

pub fn two_files(job: &mut Job) -> Result<(), Killed> {
    let start = job.load_snapshot().map_or(0, |snapshot| snapshot.next_epoch);
    let mut best: Option<Best> = None;
    for epoch in start..job.epochs {
        let accuracy = job.train_and_validate(epoch)?;
        job.save_snapshot(Snapshot { next_epoch: epoch + 1, best })?;
        if best.is_none_or(|best| accuracy > best.accuracy) {
            best = Some(Best { epoch, accuracy });
            job.save_best_model()?;
        }
    }
    Ok(())
}
