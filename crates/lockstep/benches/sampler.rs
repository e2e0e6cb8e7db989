//! Measures the computation of an epoch's order, at MNIST's and ImageNet's size, against libtorch's own permutation.
//!
//! The baseline is what dominates Python's `DistributedSampler`: `torch.randperm(n)` and reading the tensor out.

#[path = "../../../engine/c10d/benches/support/mod.rs"]
mod support;

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::Criterion;
use lockstep::sampler::{DistributedSampler, Sampler, randperm};
use lockstep::{Rank, WorldSize};
use support::rounds;
use tch::{Device, Kind, Tensor};

const SIZES: [(usize, &str); 2] = [(60_000, "60,000"), (1_281_167, "1,281,167")];
const PEERS: [&str; 1] = ["torch.randperm to a vector"];

fn main() {
    tch::set_num_threads(1);
    let mut criterion = Criterion::default().configure_from_args();
    rounds::print_machine(1, "thread");
    let mut group = criterion.benchmark_group("sampler");
    rounds::configure(&mut group);
    let world = WorldSize::new(2).expect("2 is not 0");
    for (samples, name) in SIZES {
        rounds::bench(&mut group, &format!("randperm/{name}"), &PEERS, |side, iterations| match side {
            0 => repeat(iterations, |epoch| drop(black_box(randperm(samples, epoch)))),
            _ => repeat(iterations, |epoch| drop(black_box(torch_randperm(samples, epoch)))),
        });
        let sampler = DistributedSampler::new(samples, Rank::ZERO, world).expect("rank 0 is in a world of 2");
        rounds::bench(&mut group, &format!("shard of 2 ranks/{name}"), &PEERS, |side, iterations| match side {
            0 => repeat(iterations, |epoch| drop(black_box(sampler.indices(epoch)))),
            _ => repeat(iterations, |epoch| drop(black_box(torch_randperm(samples, epoch)))),
        });
    }
    group.finish();
    criterion.final_summary();
}

fn torch_randperm(samples: usize, seed: u64) -> Vec<i64> {
    tch::manual_seed(seed as i64);
    let order = Tensor::randperm(samples as i64, (Kind::Int64, Device::Cpu));
    Vec::try_from(order).expect("a tensor of one dimension is a vector")
}

fn repeat(iterations: u64, mut body: impl FnMut(u64)) -> Duration {
    let begun = Instant::now();
    (0..iterations).for_each(&mut body);
    begun.elapsed()
}
