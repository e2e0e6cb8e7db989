//! The snapshot says which step was done, and the run goes on with that one. As it is given.

use crate::job::{Job, Killed};

pub fn next_step(job: &mut Job) -> Result<(), Killed> {
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
