//! The promise of DDP: many ranks with small batches train like one rank with the whole batch.
//!
//! Gradients may be compressed before they are averaged: what is sent, and what is kept.

use std::rc::Rc;
use std::sync::Arc;

use c10d::{ErrorKind, ProcessGroup};
use lockstep::compress::{CompressedAverage, Compression};
use lockstep::data::{Batch, Dataset, LinearRegression};
use lockstep::loader::DataLoader;
use lockstep::optim::{Optimizer, Sgd, SgdOptions, named_parameters};
use lockstep::sampler::{DistributedSampler, Sampler};
use lockstep::{DdpOptions, DistributedDataParallel, Rank, WorldSize};
use lockstep_testkit::margin;
use tch::nn::{Init, ModuleT, VarStore};
use tch::{Device, Kind, Reduction, Tensor, nn, no_grad};

use crate::common::{bits, formula_tensor, ranks, values};

const BATCH: usize = 4;

/// 50 samples: no world size from 3 on divides it, and a batch of 4 does not either.
fn data() -> Arc<LinearRegression> {
    Arc::new(LinearRegression::new(7, 50, 6, 0.1))
}

fn store(kind: Kind) -> VarStore {
    let mut vs = VarStore::new(Device::Cpu);
    vs.set_kind(kind);
    vs
}

fn model(vs: &VarStore) -> nn::Sequential {
    let root = vs.root();
    let net = nn::seq().add(nn::linear(&root / "a", 6, 8, Default::default())).add_fn(|x| x.tanh()).add(nn::linear(
        &root / "b",
        8,
        1,
        Default::default(),
    ));
    for (salt, (_, mut parameter)) in named_parameters(vs).into_iter().enumerate() {
        no_grad(|| parameter.copy_(&formula_tensor(&parameter.size(), salt as i64 + 1, 0.5)));
    }
    net
}

fn weights(vs: &VarStore) -> Vec<Tensor> {
    named_parameters(vs).into_iter().map(|(_, p)| p.detach().copy()).collect()
}

fn optimizer(vs: &VarStore) -> Sgd {
    Sgd::new(named_parameters(vs), SgdOptions { lr: 0.05, momentum: 0.9, ..SgdOptions::default() }).unwrap()
}

fn loss(output: &Tensor, batch: &Batch) -> Tensor {
    output.mse_loss(&batch.targets.to_kind(output.kind()), Reduction::Mean)
}

/// Trains two epochs on one rank's share; returns the final weights.
fn train_share(group: Rc<ProcessGroup>, kind: Kind, options: &DdpOptions) -> Vec<Tensor> {
    let vs = store(kind);
    let net = model(&vs);
    let sampler = DistributedSampler::new(50, group.rank(), group.size()).unwrap();
    let loader = DataLoader::new(data(), sampler, BATCH).unwrap().workers(1);
    let mut optimizer = optimizer(&vs);
    let ddp = DistributedDataParallel::new(net, &vs, group, options).unwrap();
    for epoch in 0..2 {
        for batch in loader.epoch(epoch) {
            let batch = batch.unwrap();
            optimizer.zero_grad();
            let output = ddp.forward(&batch.inputs.to_kind(kind)).unwrap();
            ddp.backward(&loss(&output, &batch)).unwrap();
            optimizer.step().unwrap();
        }
    }
    weights(&vs)
}

/// The samples of all ranks, padding included, in the order in which steps take them.
struct Union(Vec<DistributedSampler>);

impl Union {
    fn of(world: usize) -> Self {
        let size = WorldSize::new(world).unwrap();
        Union((0..world).map(|rank| DistributedSampler::new(50, Rank::new(rank), size).unwrap()).collect())
    }
}

impl Sampler for Union {
    fn indices(&self, epoch: u64) -> Vec<usize> {
        let shares: Vec<Vec<usize>> = self.0.iter().map(|sampler| sampler.indices(epoch)).collect();
        (0..shares[0].len()).flat_map(|i| shares.iter().map(move |share| share[i])).collect()
    }

    fn len(&self) -> usize {
        self.0.iter().map(Sampler::len).sum()
    }
}

/// The same training on one process without any group, with batches `world` times as large.
fn train_whole(world: usize, kind: Kind) -> Vec<Tensor> {
    let vs = store(kind);
    let net = model(&vs);
    let loader = DataLoader::new(data(), Union::of(world), BATCH * world).unwrap();
    let mut optimizer = optimizer(&vs);
    for epoch in 0..2 {
        for batch in loader.epoch(epoch) {
            let batch = batch.unwrap();
            optimizer.zero_grad();
            c10d::backward(&loss(&net.forward_t(&batch.inputs.to_kind(kind), true), &batch)).unwrap();
            optimizer.step().unwrap();
        }
    }
    weights(&vs)
}

fn difference(a: &[Tensor], b: &[Tensor]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs().max().double_value(&[])).fold(0.0, f64::max)
}

#[test]
fn any_number_of_ranks_does_what_one_rank_does_with_the_whole_batch() {
    // Sums in another order: the tolerance is some thousand roundings, over at most 26 steps and weights up to 1.
    for (kind, tolerance) in [(Kind::Double, 1e-13), (Kind::Float, 1e-5)] {
        for world in 1..=4 {
            let shares = ranks(world, |group| train_share(group, kind, &DdpOptions::default()));
            assert!(shares.iter().all(|share| *share == shares[0]), "the ranks of a world of {world} differ");
            let distance = difference(&shares[0], &train_whole(world, kind));
            margin::below(
                format!("{kind:?}, {world} ranks: distance of the weights after two epochs"),
                distance,
                tolerance,
            );
            assert!(difference(&shares[0], &weights_before()) > 0.1, "training must move the weights");
        }
    }
}

fn weights_before() -> Vec<Tensor> {
    let vs = VarStore::new(Device::Cpu);
    let _net = model(&vs);
    weights(&vs)
}

#[test]
fn options_that_only_save_time_change_no_bit() {
    let small = DdpOptions { bucket_cap_mb: 1e-4, ..DdpOptions::default() };
    let variants = [
        small,
        DdpOptions { gradient_as_bucket_view: true, ..DdpOptions::default() },
        DdpOptions { gradient_as_bucket_view: true, ..small },
        DdpOptions { find_unused_parameters: true, ..small },
        DdpOptions { comm_hook: Some(c10d::CommHook::AllReduce), ..DdpOptions::default() },
    ];
    let run = |options: &DdpOptions| ranks(2, |group| train_share(group, Kind::Float, options)).swap_remove(0);
    let plain: Vec<_> = run(&DdpOptions::default()).iter().map(bits).collect();
    for options in variants {
        let other: Vec<_> = run(&options).iter().map(bits).collect();
        assert!(plain == other, "{options:?} changes bits");
    }
}

#[test]
fn half_precision_gradients_come_close_and_keep_ranks_equal() {
    let options = DdpOptions { comm_hook: Some(c10d::CommHook::Fp16Compress), ..DdpOptions::default() };
    let shares = ranks(2, |group| train_share(group, Kind::Float, &options));
    assert!(shares[0].iter().zip(&shares[1]).all(|(a, b)| bits(a) == bits(b)));
    let distance = difference(&shares[0], &train_whole(2, Kind::Float));
    assert!(distance > 0.0 && distance < 1e-2, "{distance}");
}

#[test]
fn accumulating_under_no_sync_equals_one_large_batch() {
    let accumulated = ranks(2, |group| {
        let vs = VarStore::new(Device::Cpu);
        let rank = group.rank().get();
        let ddp = DistributedDataParallel::new(model(&vs), &vs, group, &DdpOptions::default()).unwrap();
        let micro = |part: usize| data().batch(0, &[4 * rank + 2 * part, 4 * rank + 2 * part + 1]).unwrap();
        let half = |batch: &Batch| loss(&ddp.forward(&batch.inputs).unwrap(), batch) / 2.0;
        ddp.no_sync(|| ddp.backward(&half(&micro(0))).unwrap());
        let own: Vec<_> = named_parameters(&vs).iter().map(|(_, p)| p.grad().copy()).collect();
        ddp.backward(&half(&micro(1))).unwrap();
        let all: Vec<_> = named_parameters(&vs).iter().map(|(_, p)| p.grad().copy()).collect();
        (own, all)
    });
    let apart = difference(&accumulated[0].0, &accumulated[1].0);
    assert!(apart > 1e-3, "under no_sync each rank has its own gradients");
    assert_eq!(difference(&accumulated[0].1, &accumulated[1].1), 0.0);

    let vs = VarStore::new(Device::Cpu);
    let net = model(&vs);
    let whole = data().batch(0, &[0, 1, 2, 3, 4, 5, 6, 7]).unwrap();
    c10d::backward(&loss(&net.forward_t(&whole.inputs, true), &whole)).unwrap();
    let reference: Vec<_> = named_parameters(&vs).iter().map(|(_, p)| p.grad()).collect();
    assert!(difference(&accumulated[0].1, &reference) < 1e-6);
}

#[test]
fn the_constructor_makes_all_ranks_rank_zeros_frozen_weights_and_buffers_too() {
    let values = ranks(3, |group| {
        let rank = group.rank().get() as f64;
        let vs = VarStore::new(Device::Cpu);
        let root = vs.root();
        let net = nn::linear(&root / "net", 2, 2, Default::default());
        let _frozen = root.var("frozen", &[2], nn::Init::Const(rank)).set_requires_grad(false);
        let _buffer = root.zeros_no_train("buffer", &[2]).fill_(rank);
        let _trained = no_grad(|| named_parameters(&vs)[0].1.fill_(rank));
        let _ddp = DistributedDataParallel::new(net, &vs, group, &DdpOptions::default()).unwrap();
        let mut all: Vec<(String, Vec<u32>)> = vs.variables().iter().map(|(n, t)| (n.clone(), bits(t))).collect();
        all.sort();
        all
    });
    assert_eq!(values[0].len(), 4);
    assert!(values.iter().all(|v| *v == values[0]), "{values:?}");
    assert_eq!(values[0].iter().find(|(n, _)| n == "frozen").unwrap().1, [0, 0]);
}

#[test]
fn training_passes_bring_rank_zeros_batch_norm_statistics_to_all() {
    let statistics = ranks(2, |group| {
        let rank = group.rank().get() as f64;
        let vs = VarStore::new(Device::Cpu);
        let root = vs.root();
        let net = nn::seq_t().add(nn::batch_norm1d(&root / "norm", 3, Default::default())).add(nn::linear(
            &root / "out",
            3,
            1,
            Default::default(),
        ));
        let ddp = DistributedDataParallel::new(net, &vs, group, &DdpOptions::default()).unwrap();
        let inputs = formula_tensor(&[8, 3], 5, 1.0) + rank;
        let mean = || vs.variables()["norm.running_mean"].copy();
        let output = ddp.forward(&inputs).unwrap();
        ddp.backward(&output.mean(Kind::Float)).unwrap();
        let own = mean();
        ddp.sync_buffers().unwrap();
        let synced = mean();
        // An evaluation changes nothing and communicates with no rank.
        let _output = ddp.module().forward_t(&inputs, false);
        (own, synced)
    });
    let [(own0, synced0), (own1, synced1)] = &statistics[..] else { panic!("two ranks") };
    assert_ne!(bits(own0), bits(own1), "after a pass each rank has statistics of its own batch");
    assert_eq!(bits(synced0), bits(own0));
    assert_eq!(bits(synced0), bits(synced1));
}

#[test]
fn a_branch_that_one_rank_skips_needs_the_option_for_unused_parameters() {
    let options = DdpOptions { find_unused_parameters: true, ..DdpOptions::default() };
    let gradients = ranks(2, |group| {
        let first = group.rank().is_zero();
        let vs = VarStore::new(Device::Cpu);
        let root = vs.root();
        let branches = (
            nn::linear(&root / "always", 2, 1, Default::default()),
            nn::linear(&root / "sometimes", 2, 1, Default::default()),
        );
        let ddp = DistributedDataParallel::new(branches, &vs, group, &options).unwrap();
        let x = Tensor::ones([1, 2], (Kind::Float, Device::Cpu));
        for _ in 0..2 {
            named_parameters(&vs).iter_mut().for_each(|(_, p)| c10d::clear_grad(p).unwrap());
            let output = ddp
                .forward_with(
                    |(always, sometimes)| {
                        if first { x.apply(always) + x.apply(sometimes) } else { x.apply(always) }
                    },
                )
                .unwrap();
            ddp.backward(&output.sum(Kind::Float)).unwrap();
        }
        let grad = |name: &str| vs.variables()[name].grad().double_value(&[0, 0]);
        (grad("always.weight"), grad("sometimes.weight"))
    });
    assert_eq!(gradients, [(1.0, 0.5); 2]);
}

#[test]
fn models_of_different_shape_are_refused() {
    let errors = ranks(2, |group| {
        let width = 2 + group.rank().get() as i64;
        let vs = VarStore::new(Device::Cpu);
        let net = nn::linear(vs.root(), width, 1, Default::default());
        let refused = DistributedDataParallel::new(net, &vs, Rc::clone(&group), &DdpOptions::default()).err();
        // A rank that was not refused waits for one that is gone, until that one leaves the group.
        refused.map(|error| error.kind())
    });
    assert!(errors.contains(&Some(ErrorKind::Mismatch)), "{errors:?}");
}

#[test]
fn a_model_with_nothing_to_train_is_a_bad_argument() {
    ranks(1, |group| {
        let vs = VarStore::new(Device::Cpu);
        let net = nn::linear(vs.root(), 2, 1, Default::default());
        let mut vs = vs;
        vs.freeze();
        let error = DistributedDataParallel::new(net, &vs, group, &DdpOptions::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadArgument, "{error}");
    });
}

#[test]
fn a_forward_pass_without_autograd_leaves_the_next_step_unchanged() {
    ranks(2, |group| {
        let vs = VarStore::new(Device::Cpu);
        let ddp = DistributedDataParallel::new(model(&vs), &vs, group, &DdpOptions::default()).unwrap();
        let batch = data().batch(0, &[0, 1, 2, 3]).unwrap();
        for _ in 0..3 {
            let _looked_at = no_grad(|| ddp.forward(&batch.inputs).unwrap());
            let output = ddp.forward(&batch.inputs).unwrap();
            ddp.backward(&loss(&output, &batch)).unwrap();
        }
        assert!(named_parameters(&vs).iter().all(|(_, p)| p.grad().defined()));
    });
}

/// The gradients of a wide model, wrapped now or one step earlier, for the same weights and data: as a resumed process and an
/// uninterrupted one compute them.
fn gradients_of_a_process(group: &Rc<ProcessGroup>, steps_before: usize, options: &DdpOptions) -> Vec<Vec<u32>> {
    let vs = store(Kind::Float);
    let root = vs.root();
    let mut net = nn::seq();
    for (name, (from, to)) in [("a", (6, 31)), ("b", (31, 17)), ("c", (17, 1))] {
        net = net.add(nn::linear(&root / name, from, to, Default::default())).add_fn(|x| x.tanh());
    }
    for (salt, (_, mut parameter)) in named_parameters(&vs).into_iter().enumerate() {
        no_grad(|| parameter.copy_(&formula_tensor(&parameter.size(), salt as i64 + 1, 0.5)));
    }
    let ddp = DistributedDataParallel::new(net, &vs, Rc::clone(group), options).unwrap();
    let inputs = formula_tensor(&[5, 6], 40 + group.rank().get() as i64, 1.0);
    for _ in 0..=steps_before {
        named_parameters(&vs).iter_mut().for_each(|(_, p)| c10d::clear_grad(p).unwrap());
        ddp.backward(&ddp.forward(&inputs).unwrap().sum(Kind::Float)).unwrap();
    }
    named_parameters(&vs).iter().map(|(_, p)| bits(&p.grad())).collect()
}

#[test]
fn fixed_buckets_give_a_process_that_resumed_the_same_bits_on_any_number_of_ranks() {
    for world in 1..=4 {
        for options in [
            DdpOptions { fixed_buckets: true, ..Default::default() },
            DdpOptions { fixed_buckets: true, gradient_as_bucket_view: true, ..Default::default() },
            DdpOptions { fixed_buckets: true, find_unused_parameters: true, ..Default::default() },
            DdpOptions { fixed_buckets: true, bucket_cap_mb: 0.001, ..Default::default() },
        ] {
            let equal = ranks(world, |group| {
                gradients_of_a_process(&group, 0, &options) == gradients_of_a_process(&group, 1, &options)
            });
            assert_eq!(equal, vec![true; world], "{world} ranks, {options:?}");
        }
    }
}

#[test]
fn a_new_bucket_layout_after_the_first_step_changes_bits_from_three_ranks_on() {
    let equal = |world| {
        ranks(world, |group| {
            let options = DdpOptions::default();
            gradients_of_a_process(&group, 0, &options) == gradients_of_a_process(&group, 1, &options)
        })
    };
    assert_eq!((equal(2), equal(3), equal(4)), (vec![true; 2], vec![false; 3], vec![false; 4]));
}

#[test]
fn fixed_buckets_are_cut_before_the_first_step_and_stay() {
    let layout = |fixed_buckets| {
        ranks(2, |group| {
            let vs = store(Kind::Float);
            let options = DdpOptions { bucket_cap_mb: 0.0001, fixed_buckets, ..Default::default() };
            let ddp = DistributedDataParallel::new(model(&vs), &vs, group, &options).unwrap();
            assert!(named_parameters(&vs).iter().all(|(_, p)| !p.grad().defined()), "no gradient is left over");
            let before = ddp.reducer().unwrap().bucket_numels().unwrap();
            let inputs = formula_tensor(&[3, 6], 9, 1.0);
            ddp.backward(&ddp.forward(&inputs).unwrap().sum(Kind::Float)).unwrap();
            drop(ddp.forward(&inputs).unwrap());
            (before, ddp.reducer().unwrap().bucket_numels().unwrap())
        })
    };
    // A bucket is closed by the first parameter that brings it to 104 bytes: the last layer (1 + 8) and the first one's weight
    // (48) fill it, and then the first one's bias (8) has its own.
    let fixed = layout(true);
    assert_eq!(fixed, vec![(vec![57, 8], vec![57, 8]); 2]);
    assert_eq!(layout(false)[0].0, [65], "PyTorch begins with one bucket for all");
}

const ROWS: i64 = 12;
const COLUMNS: i64 = 10;

/// Runs `body` on each rank of a group with a matrix and a vector.
fn ranks_with_variables<T: Send>(n: usize, body: impl Fn(Rc<ProcessGroup>, VarStore) -> T + Send + Sync) -> Vec<T> {
    crate::common::ranks(n, |group| {
        let vs = VarStore::new(Device::Cpu);
        let _ = vs.root().var("matrix", &[ROWS, COLUMNS], Init::Const(0.0));
        let _ = vs.root().var("vector", &[COLUMNS], Init::Const(0.0));
        body(group, vs)
    })
}

fn set(vs: &VarStore, name: &str, gradient: &Tensor) {
    let mut parameter = vs.variables()[name].shallow_clone();
    if parameter.grad().defined() {
        c10d::clear_grad(&mut parameter).unwrap();
    }
    (&parameter * gradient).sum(Kind::Float).backward();
}

fn gradient(vs: &VarStore, name: &str) -> Vec<f64> {
    values(&vs.variables()[name].grad())
}

/// A matrix of rank 1 for each rank, with the same columns, so that the mean has rank 1 too.
fn rank_one(rank: usize) -> Tensor {
    let row = (Tensor::arange(COLUMNS, (Kind::Float, Device::Cpu)) + rank as f64) / 8.0;
    (Tensor::arange(ROWS, (Kind::Float, Device::Cpu)) - 3.0).outer(&row)
}

fn close(found: &[f64], expected: &Tensor, tolerance: f64) {
    let expected = values(expected);
    let far = found.iter().zip(&expected).find(|(found, expected)| (*found - *expected).abs() > tolerance);
    assert!(found.len() == expected.len() && far.is_none(), "{far:?}");
}

#[test]
fn powersgd_sends_thin_matrices_and_keeps_a_mean_of_low_rank() {
    ranks_with_variables(2, |group, vs| {
        let mut average = CompressedAverage::new(Rc::clone(&group), &vs, Compression::PowerSgd { rank: 2 }, 0).unwrap();
        set(&vs, "matrix", &rank_one(group.rank().get()));
        set(&vs, "vector", &Tensor::full([COLUMNS], group.rank().get() as f64, (Kind::Float, Device::Cpu)));
        let before = group.traffic().unwrap();
        average.average().unwrap();
        let sent = group.traffic().unwrap() - before;
        assert_eq!((sent.calls, sent.bytes), (2, 4 * (2 * (ROWS + COLUMNS) + COLUMNS) as u64));
        close(&gradient(&vs, "matrix"), &((rank_one(0) + rank_one(1)) / 2.0), 1e-4);
        assert_eq!(gradient(&vs, "vector"), vec![0.5; COLUMNS as usize]);
    });
}

#[test]
fn powersgd_makes_up_for_what_it_has_lost() {
    ranks_with_variables(2, |group, vs| {
        let mut average = CompressedAverage::new(Rc::clone(&group), &vs, Compression::PowerSgd { rank: 1 }, 0).unwrap();
        // A mean of full rank: one step keeps a tenth of it.
        let full =
            Tensor::eye(ROWS, (Kind::Float, Device::Cpu)).narrow(1, 0, COLUMNS) * (1.0 + group.rank().get() as f64);
        let mut sum = Tensor::zeros([ROWS, COLUMNS], (Kind::Float, Device::Cpu));
        let mut errors = Vec::new();
        for step in 1..=60 {
            set(&vs, "matrix", &full);
            set(&vs, "vector", &Tensor::zeros([COLUMNS], (Kind::Float, Device::Cpu)));
            average.average().unwrap();
            sum += vs.variables()["matrix"].grad();
            let mean = Tensor::eye(ROWS, (Kind::Float, Device::Cpu)).narrow(1, 0, COLUMNS) * 1.5;
            errors.push((&sum / f64::from(step) - &mean).norm().double_value(&[]) / mean.norm().double_value(&[]));
        }
        assert!(errors[0] > 0.5 && errors[59] < 0.3, "{errors:?}");
    });
}

#[test]
fn bf16_sends_half_the_bytes_and_keeps_8_bits() {
    ranks_with_variables(3, |group, vs| {
        let mut average = CompressedAverage::new(Rc::clone(&group), &vs, Compression::Bf16, 0).unwrap();
        let rank = group.rank().get();
        set(&vs, "matrix", &rank_one(rank));
        set(&vs, "vector", &Tensor::full([COLUMNS], 1e30, (Kind::Float, Device::Cpu)));
        let before = group.traffic().unwrap();
        average.average().unwrap();
        let sent = group.traffic().unwrap() - before;
        assert_eq!((sent.calls, sent.bytes), (1, 2 * (ROWS * COLUMNS + COLUMNS) as u64));
        let mean = (rank_one(0) + rank_one(1) + rank_one(2)) / 3.0;
        close(&gradient(&vs, "matrix"), &mean, mean.abs().max().double_value(&[]) / 64.0);
        assert!(gradient(&vs, "vector").iter().all(|value| (value / 1e30 - 1.0).abs() < 1.0 / 64.0));
    });
}

#[test]
fn refuses_a_rank_of_zero_and_a_missing_gradient() {
    ranks_with_variables(1, |group, vs| {
        let none = CompressedAverage::new(Rc::clone(&group), &vs, Compression::PowerSgd { rank: 0 }, 0);
        assert!(none.unwrap_err().to_string().contains("rank 1 at least"));
        let error = CompressedAverage::new(group, &vs, Compression::Bf16, 0).unwrap().average().unwrap_err();
        assert!(error.to_string().contains("has no gradient"), "{error}");
    });
}
