//! Answers to `next_step`: wrong ones, and unusual right ones.

use lockstep_answers::edit;

use crate::snapshots::{KillableJob, Killed};

/// The given program: the snapshot names the last step, and the run continues with that step.
pub fn last_step(job: &mut KillableJob) -> Result<(), Killed> {
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
pub fn twice_next(job: &mut KillableJob) -> Result<(), Killed> {
    let (first_epoch, first_step) = job.load().map_or((0, 0), |(epoch, step)| (epoch, step + 1));
    for epoch in first_epoch..job.epochs {
        let begin = if epoch == first_epoch { first_step } else { 0 };
        for step in begin..job.steps {
            job.train(epoch, step)?;
            if (step + 1) % job.save_every == 0 {
                job.save(epoch, step + 1);
            }
        }
    }
    Ok(())
}

/// Begins all later epochs at the step at which the first one was resumed.
pub fn every_epoch(job: &mut KillableJob) -> Result<(), Killed> {
    let (first_epoch, first_step) = job.load().unwrap_or((0, 0));
    for epoch in first_epoch..job.epochs {
        for step in first_step..job.steps {
            job.train(epoch, step)?;
            if (step + 1) % job.save_every == 0 {
                job.save(epoch, step + 1);
            }
        }
    }
    Ok(())
}

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
pub fn each_step(job: &mut KillableJob) -> Result<(), Killed> {
    let (first_epoch, first_step) = job.load().unwrap_or((0, 0));
    for epoch in first_epoch..job.epochs {
        let begin = if epoch == first_epoch { first_step } else { 0 };
        for step in begin..job.steps {
            job.train(epoch, step)?;
            job.save(epoch, step + 1);
        }
    }
    Ok(())
}

/// Saves at the end of each epoch as well.
pub fn also_epochs(job: &mut KillableJob) -> Result<(), Killed> {
    let (first_epoch, first_step) = job.load().unwrap_or((0, 0));
    for epoch in first_epoch..job.epochs {
        let begin = if epoch == first_epoch { first_step } else { 0 };
        for step in begin..job.steps {
            job.train(epoch, step)?;
            if (step + 1) % job.save_every == 0 {
                job.save(epoch, step + 1);
            }
        }
        job.save(epoch + 1, 0);
    }
    Ok(())
}

/// Saves the step that was done, and at the end of an epoch the one that comes next.
pub fn two_meanings(job: &mut KillableJob) -> Result<(), Killed> {
    // The snapshot says which step was done, so continue with the one after it.
    let (first_epoch, first_step) = job.load().map_or((0, 0), |(epoch, step)| (epoch, step + 1));
    for epoch in first_epoch..job.epochs {
        let begin = if epoch == first_epoch { first_step } else { 0 };
        for step in begin..job.steps {
            job.train(epoch, step)?;
            if (step + 1) % job.save_every == 0 {
                job.save(epoch, step);
            }
        }
        // The epoch's last steps, too, must be on disk.
        job.save(epoch + 1, 0);
    }
    Ok(())
}

/// Begins the epoch again in whose middle the snapshot was saved.
#[edit(let begin = if epoch == first_epoch { first_step } else { 0 }; => let begin = if epoch == first_epoch { 0 * first_step } else { 0 };)]
pub fn whole_epoch_again() {}

/// Begins one step early.
#[edit(let begin = if epoch == first_epoch { first_step } else { 0 }; => let begin = if epoch == first_epoch { first_step.saturating_sub(1) } else { 0 };)]
pub fn one_step_back() {}

/// Counts the next epoch from 1.
#[edit((epoch + 1, 0) => (epoch + 1, 1))]
pub fn epochs_from_one() {}
