//! Right: the snapshot names the last step, and whoever loads it adds one. The end of an epoch needs no case of its own.

use crate::job::{Job, Killed};

pub fn next_step(job: &mut Job) -> Result<(), Killed> {
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
