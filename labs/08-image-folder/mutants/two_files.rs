//! Other answers to `two_files`: wrong ones, and right ones that look unusual.

use crate::job::{Best, Job, Killed, Snapshot};

/// The snapshot first, and the best accuracy is forgotten in a resume. As it is given.
pub fn given(job: &mut Job) -> Result<(), Killed> {
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

/// The best accuracy survives, but a kill between the two files loses the best model.
pub fn snapshot_first(job: &mut Job) -> Result<(), Killed> {
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

/// The best model first, but the snapshot is made with the best of before: it is taken again for worse.
pub fn best_of_before(job: &mut Job) -> Result<(), Killed> {
    let (start, mut best) = job.load_snapshot().map_or((0, None), |snapshot| (snapshot.next_epoch, snapshot.best));
    for epoch in start..job.epochs {
        let accuracy = job.train_and_validate(epoch)?;
        let before = best;
        if best.is_none_or(|best| accuracy > best.accuracy) {
            best = Some(Best { epoch, accuracy });
            job.save_best_model()?;
        }
        job.save_snapshot(Snapshot { next_epoch: epoch + 1, best: before })?;
    }
    Ok(())
}

/// A snapshot only with a best model, as the tutorial's one file: a resume goes back to the best epoch.
pub fn from_the_best(job: &mut Job) -> Result<(), Killed> {
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

/// Right, with a write too many: a snapshot before the best model that goes on from this epoch, and one after it.
pub fn two_snapshots(job: &mut Job) -> Result<(), Killed> {
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
