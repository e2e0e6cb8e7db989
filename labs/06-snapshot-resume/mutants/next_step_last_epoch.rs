//! The tutorials' way: a snapshot after each epoch that says which one it was.

use crate::job::{Job, Killed};

pub fn next_step(job: &mut Job) -> Result<(), Killed> {
    let (first_epoch, _) = job.load().unwrap_or((0, 0));
    for epoch in first_epoch..job.epochs {
        for step in 0..job.steps {
            job.train(epoch, step)?;
        }
        job.save(epoch, 0);
    }
    Ok(())
}
