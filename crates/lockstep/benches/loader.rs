//! Measures an epoch of drawn digits through the loader against reading the data set in the caller's thread.
//!
//! The caller only drops each batch. With workers, the ratio is therefore their cost or, where a core is free, their gain. A
//! training step that takes longer than a batch hides the loading altogether.

#[path = "../../../engine/c10d/benches/support/mod.rs"]
mod support;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use criterion::{Criterion, Throughput};
use lockstep::data::{Dataset, Digits, Mnist};
use lockstep::loader::DataLoader;
use lockstep::sampler::{RandomSampler, Sampler};
use support::rounds;

const SAMPLES: usize = 6_400;
const BATCH: usize = 64;
const PEERS: [&str; 1] = ["indexing in the caller's thread"];

fn main() {
    tch::set_num_threads(1);
    let mut criterion = Criterion::default().configure_from_args();
    let digits = Arc::new(Digits::generate(0, SAMPLES));
    let sampler = Arc::new(RandomSampler::new(SAMPLES));
    let mut group = criterion.benchmark_group("loader");
    rounds::configure(&mut group);
    group.throughput(Throughput::Elements(SAMPLES as u64));
    for workers in [0, 1, 2] {
        rounds::print_machine(1 + workers, "thread");
        let set = Arc::clone(&digits) as Arc<dyn Dataset>;
        let loader = DataLoader::new(set, Arc::clone(&sampler), BATCH).expect("64 is not 0").workers(workers);
        rounds::bench(&mut group, &format!("workers {workers}"), &PEERS, |side, iterations| {
            let begun = Instant::now();
            for epoch in 0..iterations {
                if side == 0 { through(&loader, epoch) } else { directly(&digits, &sampler, epoch) }
            }
            begun.elapsed()
        });
    }
    group.finish();
    criterion.final_summary();
}

fn through(loader: &DataLoader, epoch: u64) {
    for batch in loader.epoch(epoch) {
        drop(black_box(batch.expect("drawn digits load")));
    }
}

fn directly(set: &Mnist, sampler: &RandomSampler, epoch: u64) {
    for indices in sampler.indices(epoch).chunks(BATCH) {
        drop(black_box(set.batch(epoch, indices).expect("indices are the set's own")));
    }
}
