//! All later epochs, too, begin at the step in which the first one was resumed.

use crate::job::{Job, Killed};

pub fn next_step(job: &mut Job) -> Result<(), Killed> {
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
