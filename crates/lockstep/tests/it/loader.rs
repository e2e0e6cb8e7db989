//! The loader's batches: their order, sizes and positions, independent of the workers.
//!
//! The loader's threads: how far ahead they run, when they end, and how their errors are returned.

use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use anyhow::bail;
use lockstep::data::{Batch, Dataset};
use lockstep::loader::{DataLoader, Epoch, Position, ZeroBatchSize};
use lockstep::sampler::{DistributedSampler, RandomSampler, Sampler, SequentialSampler};
use lockstep::{Rank, WorldSize};
use proptest::prelude::*;
use tch::{Device, Tensor};

/// Sample `i` is the number `i`, and its target says the epoch.
struct Numbers(usize);

impl Dataset for Numbers {
    fn len(&self) -> usize {
        self.0
    }

    fn batch(&self, epoch: u64, indices: &[usize]) -> anyhow::Result<Batch> {
        let inputs: Vec<i64> = indices.iter().map(|&index| index as i64).collect();
        let targets = vec![epoch as i64; indices.len()];
        Ok(Batch { inputs: Tensor::from_slice(&inputs), targets: Tensor::from_slice(&targets) })
    }
}

#[test]
fn follows_the_sampler_with_any_number_of_workers() {
    let order = RandomSampler::new(50).seed(1).indices(3);
    let want: Vec<Vec<i64>> = order.chunks(7).map(|chunk| chunk.iter().map(|&index| index as i64).collect()).collect();
    for workers in [0, 1, 2, 3, 20] {
        for prefetch in [0, 1, 2, 5] {
            let loader = shuffled(50, 7).workers(workers).prefetch(prefetch);
            assert_eq!(samples(loader.epoch(3)), want, "{workers} workers, prefetch {prefetch}");
        }
    }
}

#[test]
fn passes_the_epoch_to_the_data_set() {
    for workers in [0, 2] {
        let loader = shuffled(10, 5).workers(workers);
        let batch = loader.epoch(4).next().unwrap().unwrap();
        assert_eq!(Vec::<i64>::try_from(batch.targets).unwrap(), [4; 5]);
        assert_ne!(samples(loader.epoch(4)), samples(loader.epoch(5)));
    }
}

#[test]
fn makes_the_last_batch_smaller() {
    let loader = in_order(10, 4);
    assert_eq!(loader.steps(), 3);
    assert_eq!(samples(loader.epoch(0)), [vec![0, 1, 2, 3], vec![4, 5, 6, 7], vec![8, 9]]);
}

#[test]
fn drops_a_last_batch_that_is_not_full() {
    let loader = in_order(10, 4).drop_last(true);
    assert_eq!(loader.steps(), 2);
    assert_eq!(samples(loader.epoch(0)), [[0, 1, 2, 3], [4, 5, 6, 7]]);
    let loader = in_order(8, 4).drop_last(true).workers(2);
    assert_eq!(samples(loader.epoch(0)).len(), 2);
}

#[test]
fn gives_no_batch_of_an_empty_set() {
    for workers in [0, 2] {
        let loader = in_order(0, 4).workers(workers);
        assert_eq!(loader.steps(), 0);
        assert!(loader.epoch(0).next().is_none());
    }
}

#[test]
fn resumes_inside_an_epoch_as_if_it_had_not_stopped() {
    for workers in [0, 2] {
        let loader = shuffled(50, 7).workers(workers);
        let whole = samples(loader.epoch(2));
        for step in 0..=loader.steps() {
            assert_eq!(samples(loader.epoch_from(2, step)), whole[step..], "{workers} workers from step {step}");
        }
    }
}

#[test]
fn rejects_a_position_beyond_the_epoch() {
    for workers in [0, 2] {
        let mut epoch = in_order(10, 4).workers(workers).epoch_from(6, 4);
        let error = epoch.next().unwrap().unwrap_err().to_string();
        assert!(error.starts_with("cannot start at step 4 of epoch 6, which has 3: "), "{error}");
        assert!(epoch.next().is_none());
    }
}

#[test]
fn visits_all_samples_over_all_ranks() {
    let world = WorldSize::new(3).unwrap();
    let mut seen: Vec<i64> = Vec::new();
    for rank in world.ranks() {
        seen.extend(samples(sharded(30, rank, world).epoch(1)).concat());
    }
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..30));
}

#[test]
fn counts_the_remaining_steps_down() {
    let mut epoch = in_order(10, 4).epoch_from(0, 1);
    assert_eq!(epoch.size_hint(), (0, Some(2)));
    epoch.next().unwrap().unwrap();
    assert_eq!(epoch.size_hint(), (0, Some(1)));
}

/// Pictures of two by two pixels with three channels, each full of its number.
struct Pictures;

impl Dataset for Pictures {
    fn len(&self) -> usize {
        4
    }

    fn batch(&self, _epoch: u64, indices: &[usize]) -> anyhow::Result<Batch> {
        let targets: Vec<i64> = indices.iter().map(|&index| index as i64).collect();
        let targets = Tensor::from_slice(&targets);
        let inputs = targets.view([-1, 1, 1, 1]).expand([indices.len() as i64, 3, 2, 2], false).contiguous();
        Ok(Batch { inputs, targets })
    }
}

#[test]
fn puts_channels_last_if_asked_and_leaves_the_values_as_they_are() {
    for workers in [0, 2] {
        for asked in [false, true] {
            let loader = DataLoader::new(Arc::new(Pictures), SequentialSampler::new(4), 2).unwrap();
            // A host has nothing to copy from locked memory to.
            let loader = loader.workers(workers).channels_last(asked).pin_memory(Device::Cpu);
            let batches: Vec<Batch> = loader.epoch(0).map(Result::unwrap).collect();
            assert!(batches.iter().all(|batch| c10d::is_channels_last(&batch.inputs) == asked), "{workers} {asked}");
            assert_eq!(Vec::<i64>::try_from(batches[1].inputs.flatten(0, -1)).unwrap(), [[2; 12], [3; 12]].concat());
        }
    }
    let flat = in_order(4, 2).channels_last(true).epoch(0).next().unwrap().unwrap_err();
    assert!(format!("{flat:#}").contains("[n, c, h, w]"), "{flat:#}");
}

#[test]
fn rejects_a_batch_size_of_zero() {
    let refused = DataLoader::new(Arc::new(Numbers(3)), SequentialSampler::new(3), 0).err();
    assert_eq!(refused, Some(ZeroBatchSize));
}

/// Every rank's loader, and the positions after each of its steps of an epoch entered at `from`, which must be equal on all
/// ranks.
fn walk(len: usize, world: usize, batch_size: usize, from: Position) -> (Vec<DataLoader>, Vec<Position>) {
    let world = WorldSize::new(world).unwrap();
    let make = |rank| {
        let sampler = DistributedSampler::new(len, rank, world).unwrap().seed(3);
        DataLoader::new(Arc::new(Numbers(len)), sampler, batch_size).unwrap()
    };
    let loaders: Vec<_> = world.ranks().map(make).collect();
    let after = |loader: &DataLoader| -> Vec<Position> {
        (from.step..).take(loader.steps_at(from)).map(|step| loader.after(from, step)).collect()
    };
    let positions = after(&loaders[0]);
    assert!(loaders.iter().all(|loader| after(loader) == positions));
    (loaders, positions)
}

proptest! {
    #[test]
    fn resumes_with_exactly_the_remaining_batches(len in 1usize..60, world in 1usize..5, batch in 1usize..6) {
        let (loaders, positions) = walk(len, world, batch, Position::start_of(2));
        for loader in &loaders {
            let whole = samples(loader.epoch(2));
            for (done, position) in positions.iter().enumerate().filter(|(_, position)| position.epoch == 2) {
                prop_assert_eq!(position.step, done + 1);
                prop_assert_eq!(&samples(loader.epoch_at(*position))[..], &whole[done + 1..]);
            }
        }
        prop_assert_eq!(positions.last(), Some(&Position::start_of(3)));
    }

    #[test]
    fn sees_each_sample_once_an_epoch_through_several_changes_of_world_and_batch(
        len in 1usize..80,
        legs in prop::collection::vec((1usize..6, 1usize..6, 1usize..4), 1..6),
    ) {
        let (mut at, mut seen, mut last_world) = (Position::start_of(1), Vec::new(), 1);
        for (leg, &(world, batch, steps)) in legs.iter().enumerate() {
            let (loaders, positions) = walk(len, world, batch, at);
            // The last leg goes to the end of the epoch, the others end early.
            let steps = if leg + 1 == legs.len() { positions.len() } else { steps.min(positions.len()) };
            for loader in &loaders {
                seen.extend(samples(loader.epoch_at(at)).into_iter().take(steps).flatten());
            }
            (at, last_world) = (positions[steps - 1], world);
            if at.epoch == 2 {
                break;
            }
            prop_assert_eq!(at.samples, seen.len(), "nothing is padded before the end");
        }
        prop_assert_eq!(at, Position::start_of(2));
        prop_assert!(seen.len() - len < last_world, "{} visits of {} samples", seen.len(), len);
        seen.sort_unstable();
        seen.dedup();
        prop_assert!(seen.into_iter().eq(0..len as i64));
    }
}

#[test]
fn starts_the_next_epoch_where_too_few_samples_are_left_for_every_rank() {
    let sampler = DistributedSampler::new(9, Rank::ZERO, WorldSize::new(4).unwrap()).unwrap().drop_last(true);
    let loader = DataLoader::new(Arc::new(Numbers(9)), sampler, 2).unwrap();
    let late = Position { epoch: 0, step: 5, samples: 6 };
    assert_eq!((loader.steps_at(late), samples(loader.epoch_at(late)).len()), (0, 0));
    assert_eq!(samples(loader.epoch_at(Position { epoch: 0, step: 5, samples: 5 })).len(), 1);
}

#[test]
fn numbers_steps_from_its_position_in_errors() {
    let sampler = SequentialSampler::new(9);
    let loader = DataLoader::new(Arc::new(Numbers(8)), sampler, 4).unwrap();
    let error = loader.epoch_at(Position { epoch: 1, step: 7, samples: 6 }).next().unwrap().unwrap_err();
    assert!(error.to_string().contains("step 7 of epoch 1 (samples 6, 7, 8)"), "{error}");
}

fn shuffled(len: usize, batch_size: usize) -> DataLoader {
    DataLoader::new(Arc::new(Numbers(len)), RandomSampler::new(len).seed(1), batch_size).unwrap()
}

fn in_order(len: usize, batch_size: usize) -> DataLoader {
    DataLoader::new(Arc::new(Numbers(len)), SequentialSampler::new(len), batch_size).unwrap()
}

fn sharded(len: usize, rank: Rank, world: WorldSize) -> DataLoader {
    let sampler = DistributedSampler::new(len, rank, world).unwrap();
    DataLoader::new(Arc::new(Numbers(len)), sampler, 4).unwrap().workers(1)
}

fn samples(epoch: Epoch) -> Vec<Vec<i64>> {
    epoch.map(|batch| Vec::<i64>::try_from(batch.unwrap().inputs).unwrap()).collect()
}

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
