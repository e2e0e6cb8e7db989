//! Steps with the time at which each part of them began, on every rank, by the system's clock.

use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use c10d::{BucketTime, ProcessGroup};
use lockstep::all_gather_object;
use serde::{Deserialize, Serialize};

use crate::steps::{Marks, Order, Trainer};

/// Steps before those that are shown: the second one has the final buckets.
const WARM_UP: usize = 4;

/// What rank 0 answers: the steps of each rank.
#[derive(Serialize)]
pub(crate) struct Answer {
    ranks: Vec<Vec<Step>>,
}

/// Times in microseconds since 1970.
#[derive(Serialize, Deserialize)]
struct Step {
    begun: f64,
    forward: f64,
    backward: f64,
    optimizer: f64,
    ended: f64,
    buckets: Vec<Bucket>,
}

#[derive(Serialize, Deserialize)]
struct Bucket {
    bucket: usize,
    bytes: usize,
    started: f64,
    ended: f64,
}

/// Every rank calls this with the same order.
pub(crate) fn run(group: &Rc<ProcessGroup>, order: &Order) -> Result<Answer> {
    let mut trainer = Trainer::new(Rc::clone(group), order.model, order.batch)?;
    trainer.reducer().time_buckets()?;
    for _ in 0..WARM_UP {
        let _warm = trainer.step()?;
    }
    trainer.reducer().take_bucket_times()?;
    let mut steps = Vec::with_capacity(order.steps);
    for _ in 0..order.steps {
        let (marks, _) = trainer.step()?;
        let buckets = trainer.reducer().take_bucket_times()?;
        steps.push(Step::new(&marks, &buckets));
    }
    Ok(Answer { ranks: all_gather_object(group, &steps)? })
}

impl Step {
    fn new(marks: &Marks, buckets: &[BucketTime]) -> Self {
        let now = (Instant::now(), SystemTime::now());
        let at = |instant: Instant| microseconds(now.1 - (now.0 - instant));
        // Backward waits for all buckets. The thread that notes an end may get a core later than the one that waited for it.
        let ended = |time: &BucketTime| microseconds(time.ended.unwrap_or(time.started)).min(at(marks.optimizer));
        let bucket = |time: &BucketTime| Bucket {
            bucket: time.bucket,
            bytes: time.bytes,
            started: microseconds(time.started),
            ended: ended(time),
        };
        Step {
            begun: at(marks.begun),
            forward: at(marks.forward),
            backward: at(marks.backward),
            optimizer: at(marks.optimizer),
            ended: at(marks.ended),
            buckets: buckets.iter().map(bucket).collect(),
        }
    }
}

fn microseconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_nanos() as f64 / 1e3
}
