//! Both sides add one: the snapshot names the next step, and the run goes on with the one after that.

use crate::job::{Job, Killed};

pub fn next_step(job: &mut Job) -> Result<(), Killed> {
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
