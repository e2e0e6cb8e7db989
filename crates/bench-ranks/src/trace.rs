//! Steps with the time at which each part of them began, on every rank, by the system's clock.

use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use c10d::{BucketTime, ProcessGroup};
use lockstep::all_gather_object;
use lockstep_contract::bench::{StepOrder, TraceAnswer, TracedBucket, TracedStep};

use crate::steps::{Marks, Trainer};

/// Steps before those that are shown: the second one has the final buckets.
const WARM_UP: usize = 4;

/// Every rank calls this with the same order.
pub(crate) fn run(group: &Rc<ProcessGroup>, order: &StepOrder) -> Result<TraceAnswer> {
    let mut trainer = Trainer::new(Rc::clone(group), order.model, order.batch)?;
    trainer.reducer().time_buckets()?;
    for _ in 0..WARM_UP {
        let _warm = trainer.step()?;
    }
    trainer.reducer().take_bucket_times()?;
    let mut steps = Vec::with_capacity(order.steps as usize);
    for _ in 0..order.steps {
        let (marks, _) = trainer.step()?;
        let buckets = trainer.reducer().take_bucket_times()?;
        steps.push(traced(&marks, &buckets));
    }
    Ok(TraceAnswer { ranks: all_gather_object(group, &steps)? })
}

fn traced(marks: &Marks, buckets: &[BucketTime]) -> TracedStep {
    let now = (Instant::now(), SystemTime::now());
    let at = |instant: Instant| microseconds(now.1 - (now.0 - instant));
    // Backward waits for all buckets. The thread that notes an end may get a core later than the one that waited for it.
    let ended = |time: &BucketTime| microseconds(time.ended.unwrap_or(time.started)).min(at(marks.optimizer));
    let bucket = |time: &BucketTime| TracedBucket {
        bucket: time.bucket,
        bytes: time.bytes as u64,
        started: microseconds(time.started),
        ended: ended(time),
    };
    TracedStep {
        begun: at(marks.begun),
        forward: at(marks.forward),
        backward: at(marks.backward),
        optimizer: at(marks.optimizer),
        ended: at(marks.ended),
        buckets: buckets.iter().map(bucket).collect(),
    }
}

fn microseconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_nanos() as f64 / 1e3
}
