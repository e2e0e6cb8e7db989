//! The loader's batches: their order, sizes and places, whatever the workers do.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use lockstep::data::{Batch, Dataset};
use lockstep::loader::{DataLoader, Epoch, Position, ZeroBatchSize};
use lockstep::sampler::{DistributedSampler, RandomSampler, Sampler, SequentialSampler};
use lockstep::{Rank, WorldSize};
use proptest::prelude::*;
use tch::Tensor;

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
fn follows_the_sampler_whatever_the_number_of_workers() {
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
fn tells_the_data_set_the_epoch() {
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
        assert_eq!(loader.position(5), None);
    }
}

#[test]
fn goes_on_inside_an_epoch_as_if_it_had_not_stopped() {
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
fn counts_down_what_is_left() {
    let mut epoch = in_order(10, 4).epoch_from(0, 1);
    assert_eq!(epoch.size_hint(), (0, Some(2)));
    epoch.next().unwrap().unwrap();
    assert_eq!(epoch.size_hint(), (0, Some(1)));
}

#[test]
fn rejects_a_batch_size_of_zero() {
    let refused = DataLoader::new(Arc::new(Numbers(3)), SequentialSampler::new(3), 0).err();
    assert_eq!(refused, Some(ZeroBatchSize));
}

proptest! {
    #[test]
    fn splits_and_joins_positions(global_step in 0u64..1 << 60, steps in 1usize..10_000) {
        let position = Position::after(global_step, steps).unwrap();
        prop_assert!(position.step < steps);
        prop_assert_eq!(position.global_step(steps), global_step);
    }
}

#[test]
fn finds_its_position_by_the_steps_taken() {
    let loader = in_order(10, 4);
    assert_eq!(loader.position(7), Some(Position { epoch: 2, step: 1 }));
    assert_eq!(
        loader.position(6),
        Some(Position { epoch: 2, step: 0 }),
        "an epoch that is done is the next one's start"
    );
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
