//! Late loaders: on one rank, or on all, each batch takes 100 ms.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use c10d::ReduceOp;
use c10d::stragglers::{self, Cause, Finding};
use lockstep::data::{Batch, Dataset};
use lockstep::loader::DataLoader;
use lockstep::sampler::SequentialSampler;
use tch::Tensor;

use crate::common::ranks;

/// A quarter of the usual one, so that a finding comes as much sooner.
const PERIOD: Duration = Duration::from_millis(250);

/// Each batch takes this long.
struct Slow(Duration);

impl Dataset for Slow {
    fn len(&self) -> usize {
        1 << 20
    }

    fn batch(&self, _epoch: u64, indices: &[usize]) -> anyhow::Result<Batch> {
        std::thread::sleep(self.0);
        let zeros = Tensor::from_slice(&vec![0i64; indices.len()]);
        Ok(Batch { inputs: zeros.copy(), targets: zeros })
    }
}

/// Trains on nothing until something was found, so that its time does not matter.
fn found_with(of_rank: impl Fn(usize) -> Duration + Send + Sync) -> Finding {
    // A process has one listener, and plain cargo runs several tests in it at once.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (stop, heard) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(None)));
    let (found, first) = (Arc::clone(&stop), Arc::clone(&heard));
    stragglers::publish_every(PERIOD);
    stragglers::listen(move |_, finding| {
        let mut first = first.lock().unwrap();
        *first = first.take().or(finding.cloned());
        found.store(true, Ordering::Relaxed);
    });
    ranks(3, |group| {
        let set = Arc::new(Slow(of_rank(group.rank().get())));
        let loader = DataLoader::new(set, SequentialSampler::new(1 << 20), 1).unwrap();
        for batch in loader.epoch(0) {
            batch.unwrap();
            let mut stops = Tensor::from(i64::from(stop.load(Ordering::Relaxed)));
            group.all_reduce(&mut stops, ReduceOp::Max).unwrap();
            if stops.int64_value(&[]) > 0 {
                break;
            }
        }
    });
    heard.lock().unwrap().take().unwrap()
}

#[test]
fn names_the_rank_whose_loader_is_slow() {
    let finding = found_with(|rank| Duration::from_millis(if rank == 2 { 100 } else { 0 }));
    assert_eq!((finding.ranks.as_slice(), finding.cause), (&[2][..], Cause::Loader), "{finding}");
}

#[test]
fn says_that_the_loaders_of_all_ranks_are_slow() {
    let finding = found_with(|_| Duration::from_millis(100));
    assert!(finding.ranks.is_empty(), "{finding}");
    assert!(finding.share > 0.5, "{finding}");
}
