//! Answers to `next_step`: wrong ones, and unusual right ones.

use lockstep_answers::{edit, given};

use crate::snapshots::{KillableJob, Killed};

/// The given program: the snapshot names the last step, and the run continues with that step.
#[given]
pub fn last_step() {}

/// As the tutorials do: saves after each epoch and names that epoch.
pub fn last_epoch(job: &mut KillableJob) -> Result<(), Killed> {
    let (first_epoch, _) = job.load().unwrap_or((0, 0));
    for epoch in first_epoch..job.epochs {
        for step in 0..job.steps {
            job.train(epoch, step)?;
        }
        job.save(epoch, 0);
    }
    Ok(())
}

/// Adds one on both sides: the snapshot names the next step, and the run continues with the one after it.
#[given]
#[edit(.unwrap_or((0, 0)) => .map_or((0, 0), |(epoch, step)| (epoch, step + 1)))]
#[edit(job.save(epoch, step) => job.save(epoch, step + 1))]
pub fn twice_next() {}

/// Begins all later epochs at the step at which the first one was resumed.
#[given]
#[edit(if epoch == first_epoch { first_step } else { 0 } => first_step)]
#[edit(job.save(epoch, step) => job.save(epoch, step + 1))]
pub fn every_epoch() {}

/// Saves at the end of each epoch only.
pub fn only_epochs(job: &mut KillableJob) -> Result<(), Killed> {
    let (first_epoch, _) = job.load().unwrap_or((0, 0));
    for epoch in first_epoch..job.epochs {
        for step in 0..job.steps {
            job.train(epoch, step)?;
        }
        job.save(epoch + 1, 0);
    }
    Ok(())
}

/// Saves nothing, and begins again each time.
pub fn never_saves(job: &mut KillableJob) -> Result<(), Killed> {
    (0..job.epochs * job.steps).try_for_each(|done| job.train(done / job.steps, done % job.steps))
}

/// Right: saves the last step and adds one after loading. The end of an epoch needs no special case.
pub fn adds_on_load(job: &mut KillableJob) -> Result<(), Killed> {
    let begin = job.load().map_or(0, |(epoch, step)| epoch * job.steps + step + 1);
    for done in begin..job.epochs * job.steps {
        let (epoch, step) = (done / job.steps, done % job.steps);
        job.train(epoch, step)?;
        if (step + 1) % job.save_every == 0 {
            job.save(epoch, step);
        }
    }
    Ok(())
}

/// Saves after each step, so that it need not know when one is due.
#[given]
#[edit(if (step + 1) % job.save_every == 0 { job.save(epoch, step); } => job.save(epoch, step + 1);)]
pub fn each_step() {}

/// Saves at the end of each epoch as well.
#[given]
#[edit(if (step + 1) % job.save_every == 0 { job.save(epoch, step); } =>
    if (step + 1) % job.save_every == 0 { job.save(epoch, step + 1); }
    if step + 1 == job.steps { job.save(epoch + 1, 0); }
)]
pub fn also_epochs() {}

/// Saves the step that was done, and at the end of an epoch the one that comes next.
#[given]
#[edit(.unwrap_or((0, 0)) => .map_or((0, 0), |(epoch, step)| (epoch, step + 1)))]
#[edit(if (step + 1) % job.save_every == 0 { job.save(epoch, step); } =>
    if (step + 1) % job.save_every == 0 { job.save(epoch, step); }
    if step + 1 == job.steps { job.save(epoch + 1, 0); }
)]
pub fn two_meanings() {}

/// Begins the epoch again in whose middle the snapshot was saved.
#[edit(let begin = if epoch == first_epoch { first_step } else { 0 }; => let begin = if epoch == first_epoch { 0 * first_step } else { 0 };)]
pub fn whole_epoch_again() {}

/// Begins one step early.
#[edit(let begin = if epoch == first_epoch { first_step } else { 0 }; => let begin = if epoch == first_epoch { first_step.saturating_sub(1) } else { 0 };)]
pub fn one_step_back() {}

/// Names the next epoch at the end of one, and keeps the step.
#[edit((epoch + 1, 0) => (epoch + 1, step + 1))]
pub fn keeps_step() {}

/// Adds one after loading, also where there was nothing to load.
#[given]
#[edit(.unwrap_or((0, 0)) => .map_or((0, 1), |(epoch, step)| (epoch, step + 1)))]
pub fn first_step_left_out() {}

/// Counts the next epoch from 1.
#[edit((epoch + 1, 0) => (epoch + 1, 1))]
pub fn epochs_from_one() {}
