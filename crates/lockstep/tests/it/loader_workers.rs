//! The loader's threads: how far ahead they run, when they end, and how their errors are returned.

use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use anyhow::bail;
use lockstep::data::{Batch, Dataset};
use lockstep::loader::DataLoader;
use lockstep::sampler::{Sampler, SequentialSampler};
use tch::Tensor;

/// Only a loader that hangs reaches this timeout.
const DEADLINE: Duration = Duration::from_secs(600);

/// Twenty samples that record who loads them; tests load them one by one, so a sample is a step.
#[derive(Default)]
struct Watched {
    log: Mutex<Log>,
    changed: Condvar,
    fault: Option<BadItem>,
    /// If true, an even step waits until the next odd one is loaded.
    odd_steps_first: bool,
}

#[derive(Default)]
struct Log {
    begun: usize,
    made: HashSet<usize>,
    threads: HashSet<String>,
}

#[derive(Clone, Copy)]
enum BadItem {
    Error(usize),
    Panic(usize),
    Size(usize),
}

impl Watched {
    fn note(&self, entry: impl FnOnce(&mut Log)) {
        entry(&mut self.log.lock().unwrap());
        self.changed.notify_all();
    }

    fn wait_for(&self, what: &str, reached: impl Fn(&Log) -> bool) {
        let log = self.log.lock().unwrap();
        let (_log, wait) = self.changed.wait_timeout_while(log, DEADLINE, |log| !reached(log)).unwrap();
        assert!(!wait.timed_out(), "waited in vain for {what}");
    }

    fn begun(&self) -> usize {
        self.log.lock().unwrap().begun
    }
}

impl Dataset for Watched {
    fn len(&self) -> usize {
        20
    }

    fn batch(&self, _epoch: u64, indices: &[usize]) -> anyhow::Result<Batch> {
        let step = indices[0];
        let thread = thread::current().name().unwrap_or_default().to_owned();
        self.note(|log| {
            log.begun += 1;
            log.threads.insert(thread);
        });
        if self.odd_steps_first && step.is_multiple_of(2) {
            self.wait_for("the next step", |log| log.made.contains(&(step + 1)));
        }
        let mut size = indices.len() as i64;
        match self.fault {
            Some(BadItem::Error(at)) if indices.contains(&at) => bail!("file {at}.png is torn"),
            Some(BadItem::Panic(at)) if indices.contains(&at) => panic!("no file {at}.png"),
            Some(BadItem::Size(at)) if indices.contains(&at) => size -= 1,
            _ => {}
        }
        self.note(|log| _ = log.made.insert(step));
        let inputs = Tensor::full([size, 2], step as i64, (tch::Kind::Int64, tch::Device::Cpu));
        Ok(Batch { inputs, targets: Tensor::from_slice(&vec![0i64; indices.len()]) })
    }
}

#[test]
fn never_runs_further_ahead_than_it_may() {
    for (workers, prefetch) in [(1, 1), (1, 3), (2, 1), (2, 2), (3, 2)] {
        let set = Arc::new(Watched::default());
        let loader = loader(&set, 1).workers(workers).prefetch(prefetch);
        let bound = workers * prefetch;
        let mut epoch = loader.epoch(0);
        for taken in 0..20 {
            // Runs ahead as far as allowed, so that a step too many would be in progress now or at a later turn.
            set.wait_for("the workers", |log| log.begun >= (taken + bound).min(20));
            assert!(set.begun() <= taken + bound, "{} begun, {taken} taken: {workers} × {prefetch}", set.begun());
            epoch.next().unwrap().unwrap();
        }
        assert!(epoch.next().is_none());
        assert_eq!(set.begun(), 20);
    }
}

#[test]
fn loads_nothing_ahead_without_workers() {
    let set = Arc::new(Watched::default());
    let mut epoch = loader(&set, 1).prefetch(4).epoch(0);
    for taken in 0..20 {
        assert_eq!(set.begun(), taken);
        epoch.next().unwrap().unwrap();
    }
}

#[test]
fn keeps_the_order_when_later_batches_are_ready_first() {
    let set = Arc::new(Watched { odd_steps_first: true, ..Watched::default() });
    let firsts: Vec<i64> =
        loader(&set, 1).workers(2).epoch(0).map(|batch| batch.unwrap().inputs.int64_value(&[0, 0])).collect();
    assert!(firsts.into_iter().eq(0..20));
}

#[test]
fn loads_in_the_threads_that_it_was_given() {
    for (workers, want) in [(0, vec![]), (1, vec!["loader-0"]), (2, vec!["loader-0", "loader-1"])] {
        // With two workers each must take part: a step waits for the next one.
        let set = Arc::new(Watched { odd_steps_first: workers == 2, ..Watched::default() });
        assert_eq!(loader(&set, 1).workers(workers).epoch(0).count(), 20);
        let log = set.log.lock().unwrap();
        let mut loaders: Vec<_> = log.threads.iter().filter(|name| name.starts_with("loader-")).collect();
        loaders.sort();
        assert_eq!(loaders, want, "{workers} workers, seen {:?}", log.threads);
    }
}

#[test]
fn skips_without_loading() {
    for workers in [0, 2] {
        let set = Arc::new(Watched::default());
        assert_eq!(loader(&set, 1).workers(workers).epoch_from(0, 15).count(), 5);
        assert_eq!(set.begun(), 5);
        assert!((15..20).all(|step| set.log.lock().unwrap().made.contains(&step)));
    }
}

/// Each worker holds the data set, so the reference count shows whether a worker is left.
#[test]
fn joins_its_workers_when_dropped_half_way() {
    for taken in [0, 1, 7, 19] {
        let set = Arc::new(Watched::default());
        let mut epoch = loader(&set, 1).workers(3).epoch(0);
        assert!(epoch.by_ref().take(taken).all(|batch| batch.is_ok()));
        drop(epoch);
        assert_eq!(Arc::strong_count(&set), 1, "a worker outlived the iterator after {taken} batches");
    }
}

#[test]
fn joins_its_workers_at_the_end_and_after_an_error() {
    for fault in [None, Some(BadItem::Error(9)), Some(BadItem::Panic(9))] {
        let set = Arc::new(Watched { fault, ..Watched::default() });
        let mut epoch = loader(&set, 1).workers(3).epoch(0);
        assert!(epoch.by_ref().count() > 0);
        assert_eq!(Arc::strong_count(&set), 2, "more than the iterator itself holds the data set");
        drop(epoch);
        assert_eq!(Arc::strong_count(&set), 1);
    }
}

#[test]
fn reports_an_error_at_its_place_in_the_order() {
    expect_fault_at_step_3(BadItem::Error(7), "file 7.png is torn");
}

#[test]
fn reports_a_panic_at_its_place_in_the_order() {
    expect_fault_at_step_3(BadItem::Panic(7), "the data set panicked: no file 7.png");
}

#[test]
fn rejects_a_batch_of_another_size() {
    expect_fault_at_step_3(
        BadItem::Size(7),
        "the data set answered inputs of shape [1, 2] and targets of shape [2] where dimension 0 of both must be 2",
    );
}

#[test]
fn rejects_a_sampler_made_for_a_larger_set() {
    let set: Arc<Watched> = Arc::default();
    let mut epoch = DataLoader::new(set, SequentialSampler::new(21), 20).unwrap().epoch(0);
    epoch.next().unwrap().unwrap();
    let error = format!("{:#}", epoch.next().unwrap().unwrap_err());
    assert!(error.contains("sample 20 is outside the data set of 20"), "{error}");
}

#[test]
fn rejects_a_sampler_whose_length_is_wrong() {
    let mut epoch = DataLoader::new(Arc::new(Watched::default()), Miscounted, 4).unwrap().workers(2).epoch(3);
    let error = epoch.next().unwrap().unwrap_err().to_string();
    assert!(error.starts_with("the sampler gave 2 indices for epoch 3 where its length says 5"), "{error}");
    assert!(epoch.next().is_none());
}

struct Miscounted;

impl Sampler for Miscounted {
    fn indices(&self, _epoch: u64) -> Vec<usize> {
        vec![0, 1]
    }

    fn len(&self) -> usize {
        5
    }
}

#[test]
fn lists_a_few_samples_of_a_large_batch_that_failed() {
    let set = Arc::new(Watched { fault: Some(BadItem::Error(17)), ..Watched::default() });
    let error = loader(&set, 20).epoch(0).next().unwrap().unwrap_err().to_string();
    assert_eq!(error, "failed to load step 0 of epoch 0 (samples 0, 1, 2, 3, 4, 5, 6, 7 and 12 more)");
}

fn expect_fault_at_step_3(fault: BadItem, cause: &str) {
    for workers in [0, 1, 3] {
        let set = Arc::new(Watched { fault: Some(fault), ..Watched::default() });
        let mut epoch = loader(&set, 2).workers(workers).epoch(5);
        for _ in 0..3 {
            epoch.next().unwrap().unwrap();
        }
        let error = epoch.next().unwrap().unwrap_err();
        assert_eq!(format!("{error:#}"), format!("failed to load step 3 of epoch 5 (samples 6, 7): {cause}"));
        assert!(epoch.next().is_none(), "the iteration goes on after an error");
    }
}

fn loader(set: &Arc<Watched>, batch_size: usize) -> DataLoader {
    let set: Arc<dyn Dataset> = Arc::clone(set) as _;
    let samples = set.len();
    DataLoader::new(set, SequentialSampler::new(samples), batch_size).unwrap()
}
