//! Answers to `two_files`: wrong ones, and unusual right ones.

use lockstep_answers::{edit, given};

use crate::job::{Best, Killed, Snapshot, TwoFileJob};

/// The given program: writes the snapshot first and forgets the best accuracy on a resume.
#[given]
pub fn given() {}

/// Keeps the best accuracy, but a kill between the two files loses the best model.
#[edit(if best.is_none_or(|best| accuracy > best.accuracy) => let better = best.is_none_or(|best| accuracy > best.accuracy); if better)]
#[edit(job.save_best_model()?; => )]
#[edit(job.save_snapshot(Snapshot { next_epoch: epoch + 1, best })?; => job.save_snapshot(Snapshot { next_epoch: epoch + 1, best })?; if better { job.save_best_model()?; })]
pub fn snapshot_first() {}

/// Writes the best model first, but puts the previous best epoch into the snapshot.
#[edit(if best => let before = best; if best)]
#[edit(next_epoch: epoch + 1, best => next_epoch: epoch + 1, best: before)]
pub fn best_of_before() {}

/// Does not read the best accuracy after a restart.
#[edit((snapshot.next_epoch, snapshot.best) => (snapshot.next_epoch, None::<Best>))]
pub fn forgets() {}

/// Puts the last epoch into the snapshot in place of the best one.
#[edit(next_epoch: epoch + 1, best => next_epoch: epoch + 1, best: Some(Best { epoch, accuracy }))]
pub fn last_for_best() {}

/// Begins again with the epoch of the best model.
#[edit((snapshot.next_epoch, snapshot.best) => (snapshot.best.map_or(0, |best| best.epoch), None::<Best>))]
pub fn back_to_the_best() {}

/// Writes a snapshot only with a best model, as the tutorial does, so a resume goes back to the best epoch.
#[edit(job.save_snapshot(Snapshot { next_epoch: epoch + 1, best })?; => )]
#[edit(job.save_best_model()?; => job.save_best_model()?; job.save_snapshot(Snapshot { next_epoch: epoch + 1, best })?;)]
pub fn from_the_best() {}

/// Keeps the last of equal epochs.
#[edit(accuracy > best.accuracy => accuracy >= best.accuracy)]
pub fn last_of_equals() {}

/// Writes the best model after every epoch.
#[edit(job.save_best_model()?; => )]
#[edit(job.save_snapshot => job.save_best_model()?; job.save_snapshot)]
pub fn every_model() {}

/// Puts the epoch that is done into the snapshot, not the next one.
#[edit(next_epoch: epoch + 1 => next_epoch: epoch)]
pub fn same_epoch() {}

/// Has nothing to compare the first model with, and does not write it.
#[edit(if best.is_none_or(|best| accuracy > best.accuracy) => let Some(before) = best else {
    best = Some(Best { epoch, accuracy });
    job.save_snapshot(Snapshot { next_epoch: epoch + 1, best })?;
    continue;
};
if accuracy > before.accuracy)]
pub fn not_the_first() {}

/// Right: with one write more than necessary, a snapshot before the best model and one after it.
pub fn two_snapshots(job: &mut TwoFileJob) -> Result<(), Killed> {
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

/// Begins with a best accuracy of 0, which an epoch without any success does not exceed.
#[edit(best.is_none_or(|best| accuracy > best.accuracy) => accuracy > best.map_or(0.0, |best| best.accuracy))]
pub fn above_zero() {}

/// Begins with the epoch after the next.
#[edit(for epoch in start..job.epochs => for epoch in start + 1..job.epochs)]
pub fn skips_one() {}

/// Writes the model in memory again after a restart.
#[edit(for epoch => if best.is_some() {
    job.save_best_model()?;
} for epoch)]
pub fn writes_after_loading() {}

/// Puts the next epoch's number into the best one.
#[edit(best = Some(Best { epoch, accuracy }); => best = Some(Best { epoch: epoch + 1, accuracy });)]
pub fn off_by_one() {}
