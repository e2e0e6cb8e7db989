//! Other answers to `next_step`: wrong ones, and right ones that look unusual.

use crate::job::{Job, Killed};

/// The snapshot says which step was done, and the run goes on with that one. As it is given.
pub fn last_step(job: &mut Job) -> Result<(), Killed> {
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

/// The tutorials' way: a snapshot after each epoch that says which one it was.
pub fn last_epoch(job: &mut Job) -> Result<(), Killed> {
    let (first_epoch, _) = job.load().unwrap_or((0, 0));
    for epoch in first_epoch..job.epochs {
        for step in 0..job.steps {
            job.train(epoch, step)?;
        }
        job.save(epoch, 0);
    }
    Ok(())
}

/// Both sides add one: the snapshot names the next step, and the run goes on with the one after that.
pub fn twice_next(job: &mut Job) -> Result<(), Killed> {
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

/// All later epochs, too, begin at the step in which the first one was resumed.
pub fn every_epoch(job: &mut Job) -> Result<(), Killed> {
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

/// Right: the snapshot names the last step, and whoever loads it adds one. The end of an epoch needs no case of its own.
pub fn adds_on_load(job: &mut Job) -> Result<(), Killed> {
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
