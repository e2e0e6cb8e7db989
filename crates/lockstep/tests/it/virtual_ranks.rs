//! A training of virtual ranks ends with the same bits on any number of ranks, and when that number changes between two steps: over
//! shared memory, Gloo and two levels, for each kind of model, optimizer and step. Ranks are threads, which resume from real snapshots; lab
//! 06 has the same for processes that are killed.

use std::cell::Cell;
use std::fmt::Debug;
use std::num::NonZeroUsize;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use c10d::{Backend, CommHook, ProcessGroup, Rank};
use lockstep::accumulate::{accumulate, accumulate_virtual};
use lockstep::data::{Batch, Dataset};
use lockstep::loader::DataLoader;
use lockstep::nn::{SyncBatchNorm2d, SyncBatchNormOptions, raise};
use lockstep::optim::{Optimizer, Sgd, SgdOptions, named_parameters};
use lockstep::parallel::context::ring_attention;
use lockstep::parallel::tensor::sum_over_ranks;
use lockstep::parallel::{FullyShard, FullyShardOptions};
use lockstep::sampler::DistributedSampler;
use lockstep::virtual_ranks::{VirtualLoader, VirtualRanks};
use lockstep::{DdpOptions, DdpVariables, DistributedDataParallel};
use lockstep_rank_messages::bench::{ElasticModel, ElasticTraining, Float, Updates};
use lockstep_testkit::margin;
use proptest::prelude::*;
use tch::nn::{self, Module, VarStore};
use tch::{Device, Kind, Tensor, no_grad};

use crate::common::{bits, formula, formula_tensor, ranks_on};
use crate::snapshot::reporter;
use training::{CLASSES, Draws, Outcome, network, train};

#[path = "../../benches/support/formula.rs"]
mod formula;
#[path = "../../benches/support/virtual_ranks.rs"]
mod training;

const PLAIN: ElasticTraining = ElasticTraining::of(ElasticModel::Mlp);

/// [`train`] of this rank. Ranks are threads here.
fn trained(group: Rc<ProcessGroup>, training: &ElasticTraining, folder: &Path, until: usize) -> Outcome {
    let report = reporter(&group);
    train(group, &report, training, Draws::Own, folder, until).unwrap()
}

/// Trains on numbers of ranks, each up to a step. All ranks must agree.
fn run(training: &ElasticTraining, backend: Backend, schedule: &[(usize, usize)]) -> Outcome {
    tch::set_num_threads(1);
    let folder = tempfile::tempdir().unwrap();
    let mut all = Outcome::default();
    for &(world, until) in schedule {
        let outcomes = ranks_on(backend, world, |group| trained(group, training, folder.path(), until));
        for (rank, outcome) in outcomes.iter().enumerate() {
            assert!(*outcome == outcomes[0], "rank {rank} of {world} differs from rank 0");
        }
        let losses = [&all.losses[..], &outcomes[0].losses].concat();
        all = Outcome { losses, ..outcomes[0].clone() };
    }
    all
}

/// The runs end alike, which is said of each that does not.
#[track_caller]
fn assert_alike(training: &ElasticTraining, steps: usize, others: &[(Backend, &[(usize, usize)])]) {
    let alone = run(training, Backend::Gloo, &[(1, steps)]);
    assert_eq!(alone.losses.len(), steps);
    assert!(alone.losses.first() != alone.losses.last(), "it learns");
    for (backend, schedule) in others {
        let other = run(training, *backend, schedule);
        assert!(other == alone, "{schedule:?} over {} differs from one rank: {training:?}", backend.name());
    }
}

/// W = 2, 3 and 4 over shared memory and Gloo, and changes of W.
fn assert_alike_on_all(training: ElasticTraining, steps: usize) {
    use Backend::{Gloo, SharedMemory};
    let half = steps / 2;
    let (two, three, four) = (&[(2, steps)][..], &[(3, steps)][..], &[(4, steps)][..]);
    let changing = &[(4, half - 1), (3, half), (1, half + 1), (2, steps)][..];
    assert_alike(
        &training,
        steps,
        &[
            (SharedMemory, two),
            (SharedMemory, three),
            (SharedMemory, four),
            (Gloo, three),
            (Gloo, four),
            (SharedMemory, changing),
        ],
    );
}

#[test]
fn an_mlp_has_the_same_bits_on_any_number_of_ranks() {
    for virtual_ranks in [4, 6] {
        assert_alike_on_all(ElasticTraining { virtual_ranks: Some(virtual_ranks), ..PLAIN }, 8);
    }
}

#[test]
fn so_has_a_resnet_with_batch_norm_and_mirrored_pictures() {
    assert_alike_on_all(ElasticTraining { model: ElasticModel::Resnet, virtual_ranks: Some(6), ..PLAIN }, 4);
}

#[test]
fn so_has_a_gpt_with_dropout_under_adamw_with_clipping_and_micro_batches() {
    let training = ElasticTraining {
        model: ElasticModel::Gpt,
        updates: Updates::AdamW,
        clip: Some(0.5),
        micro_batches: 2,
        ..PLAIN
    };
    for virtual_ranks in [4, 6] {
        assert_alike_on_all(ElasticTraining { virtual_ranks: Some(virtual_ranks), ..training }, 6);
    }
}

#[test]
fn so_have_divided_states_with_micro_batches() {
    assert_alike_on_all(
        ElasticTraining { updates: Updates::Zero, micro_batches: 2, virtual_ranks: Some(6), ..PLAIN },
        6,
    );
}

#[test]
fn so_has_mixed_precision_with_a_scaled_loss() {
    let training = ElasticTraining { float: Float::Float16, clip: Some(1.0), virtual_ranks: Some(6), ..PLAIN };
    assert_alike_on_all(training, 6);
    assert_alike_on_all(ElasticTraining { model: ElasticModel::Gpt, float: Float::Bfloat16, ..PLAIN }, 4);
}

#[test]
fn two_levels_of_hosts_have_the_same_bits() {
    let training = ElasticTraining { virtual_ranks: Some(6), ..PLAIN };
    assert_alike(&training, 5, &[(Backend::TwoLevels, &[(3, 2), (4, 5)])]);
}

#[test]
fn as_many_ranks_as_virtual_ones_are_plain_ddp_in_shared_memory() {
    for (world, model) in
        [(2, ElasticModel::Mlp), (3, ElasticModel::Resnet), (4, ElasticModel::Mlp), (6, ElasticModel::Gpt)]
    {
        let elastic = ElasticTraining { model, virtual_ranks: Some(world), ..PLAIN };
        let plain = ElasticTraining { virtual_ranks: None, ..elastic };
        let [elastic, plain] = [elastic, plain].map(|training| {
            let folder = tempfile::tempdir().unwrap();
            let outcomes = ranks_on(Backend::SharedMemory, world, |group| trained(group, &training, folder.path(), 4));
            outcomes.into_iter().map(|outcome| outcome.weights).collect::<Vec<_>>()
        });
        assert!(elastic == plain, "{world} ranks train other weights of {model:?} with plain DDP");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, max_shrink_iters: 20, ..ProptestConfig::default() })]

    /// An epoch of 6 virtual ranks has 3 steps, one of 4 has 4: most changes are in the middle of one.
    #[test]
    fn any_schedule_of_ranks_ends_with_the_same_bits(
        worlds in prop::collection::vec(1..=4_usize, 2..5),
        virtual_ranks in prop::sample::select(vec![4, 5, 6]),
        over_gloo: bool,
        steps in prop::collection::vec(0..4_usize, 4),
    ) {
        let training = ElasticTraining { virtual_ranks: Some(virtual_ranks), clip: Some(1.0), ..PLAIN };
        let mut until = 0;
        let schedule: Vec<(usize, usize)> = worlds.into_iter().zip(steps).map(|(world, steps)| {
            until += steps;
            (world, until)
        }).collect();
        let backend = if over_gloo { Backend::Gloo } else { Backend::SharedMemory };
        prop_assert!(run(&training, backend, &schedule) == run(&training, Backend::Gloo, &[(1, until)]), "{schedule:?}");
    }
}

// ---- beside Python

#[derive(serde::Deserialize)]
struct Golden {
    torch: String,
    losses: std::collections::BTreeMap<String, Vec<Vec<f64>>>,
}

/// The samples of `scripts/golden/ddp.py`.
struct Formula;

impl Dataset for Formula {
    fn len(&self) -> usize {
        50
    }

    fn batch(&self, _epoch: u64, indices: &[usize]) -> anyhow::Result<Batch> {
        let all = formula(50 * 20, 9, 1.0);
        let rows: Vec<f32> = indices.iter().flat_map(|&i| all[i * 20..(i + 1) * 20].iter().copied()).collect();
        let targets: Vec<i64> = indices.iter().map(|&i| (i * i + i / 3) as i64 % CLASSES).collect();
        let inputs = Tensor::from_slice(&rows).view([-1, 20]);
        Ok(Batch { inputs, targets: Tensor::from_slice(&targets) })
    }
}

/// The losses of each of four virtual ranks, of which this rank has some.
fn losses_as_in_python(group: Rc<ProcessGroup>) -> Vec<(Rank, Vec<f64>)> {
    let vs = VarStore::new(Device::Cpu);
    let net = network(ElasticModel::Mlp, &vs, 0.0).unwrap();
    for (salt, name) in ["0.weight", "0.bias", "2.weight", "2.bias"].iter().enumerate() {
        let mut variable = vs.variables()[*name].shallow_clone();
        no_grad(|| variable.copy_(&formula_tensor(&variable.size(), salt as i64 + 1, 0.25)));
    }
    let options = SgdOptions { lr: 0.1, momentum: 0.9, ..SgdOptions::default() };
    let mut optimizer = Sgd::new(named_parameters(&vs), options).unwrap();
    let options = DdpOptions { virtual_ranks: NonZeroUsize::new(4), ..Default::default() };
    let model = DistributedDataParallel::new(net, &vs, group, &options).unwrap();
    let ranks = model.virtual_ranks();
    let loader = VirtualLoader::new(ranks, |v| {
        let sampler = DistributedSampler::new(50, v, ranks.count())?.seed(3);
        anyhow::Ok(DataLoader::new(Arc::new(Formula), sampler, 8)?)
    })
    .unwrap();
    let mut losses: Vec<(Rank, Vec<f64>)> = ranks.own().map(|v| (v, Vec::new())).collect();
    for epoch in 0..3 {
        for batches in loader.epoch(epoch) {
            optimizer.zero_grad();
            for ((v, batch), (of, losses)) in batches.unwrap().into_iter().zip(&mut losses) {
                let loss = model.forward(&batch.inputs).unwrap().cross_entropy_for_logits(&batch.targets);
                model.backward(&loss).unwrap();
                losses.push(loss.double_value(&[]));
                assert_eq!(v, *of);
            }
            optimizer.step().unwrap();
        }
    }
    losses
}

#[test]
fn virtual_ranks_have_the_losses_of_pythons_ranks_within_1e_6() {
    let golden: Golden = serde_json::from_str(include_str!("../../golden/ddp.json")).unwrap();
    assert_eq!(golden.torch, "2.11.0");
    let python = &golden.losses["four_ranks"];
    assert_eq!(python.len(), 4);
    for world in 1..=4 {
        let losses: Vec<_> = ranks_on(Backend::SharedMemory, world, losses_as_in_python).concat();
        let mut worst = 0f64;
        for ((v, ours), theirs) in losses.iter().zip(python) {
            assert_eq!(ours.len(), theirs.len(), "virtual rank {v}");
            assert!(ours.iter().all(|loss| loss.is_finite()), "{ours:?}");
            worst = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs() / b.abs()).fold(worst, f64::max);
        }
        margin::below(format!("{world} ranks: losses from Python's four ranks, as a part of them"), worst, 1e-6);
    }
}

// ---- what is sent, and when

/// In a step, how many bytes this rank had sent when the first layer's inputs were needed again, and at its end.
fn sent_in_step(group: &Rc<ProcessGroup>, model: &DistributedDataParallel<()>, weights: &[Tensor; 2]) -> [u64; 2] {
    let sent = {
        let group = Rc::clone(group);
        move || group.traffic().unwrap().bytes
    };
    weights.iter().for_each(|weight| c10d::clear_grad(&mut weight.shallow_clone()).unwrap());
    let seen = Rc::new(Cell::new(0));
    for v in model.virtual_ranks().own() {
        let inputs = formula_tensor(&[3, 8], v.get() as i64, 1.0);
        let (address, seen, now) = (inputs.data_ptr() as usize, Rc::clone(&seen), sent.clone());
        // Autograd gets the tensor back right before it computes the first weight's gradient.
        let pack: c10d::Pack = Rc::new(move |saved: &Tensor| {
            let (saved, seen, now) = (saved.shallow_clone(), Rc::clone(&seen), now.clone());
            (saved.data_ptr() as usize == address).then(|| -> c10d::Unpack {
                Box::new(move || {
                    seen.set(now());
                    Ok(saved.shallow_clone())
                })
            })
        });
        let loss = c10d::with_saved_tensors(pack, || {
            let loss = || inputs.matmul(&weights[0]).relu().matmul(&weights[1]).mean(Kind::Float);
            model.forward_with(|()| loss()).unwrap()
        });
        model.backward(&loss.unwrap()).unwrap();
    }
    [seen.get(), sent()]
}

#[test]
fn a_bucket_is_sent_while_the_backward_pass_computes_the_next() {
    for (world, count) in [(2, 2), (2, 4), (3, 5)] {
        ranks_on(Backend::Gloo, world, |group| {
            let vs = VarStore::new(Device::Cpu);
            let weights = ["a", "b"].map(|name| vs.root().var(name, &[8, 8], nn::Init::Const(0.1)));
            let bucket_cap_mb = 1e-4; // each weight has its own
            let options = DdpOptions { virtual_ranks: NonZeroUsize::new(count), bucket_cap_mb, ..Default::default() };
            let model = DistributedDataParallel::new((), &vs, Rc::clone(&group), &options).unwrap();
            for step in 0..3 {
                let before = group.traffic().unwrap().bytes;
                let [seen, after] = sent_in_step(&group, &model, &weights);
                let counted = step > 0 || model.virtual_ranks().own().len() > 1;
                assert_eq!(seen > before, counted, "step {step}, {world} ranks of {count}");
                assert!(after > seen, "the other bucket follows");
            }
        });
    }
}

/// A weight that two functions use, which are computed again in the backward pass: its gradient arrives in two parts.
fn used_twice(weight: &Tensor, inputs: &Tensor) -> Tensor {
    let part = || {
        let weight = weight.shallow_clone();
        c10d::checkpoint(inputs, move |inputs| inputs * &weight).unwrap()
    };
    (part() + part()).sum(Kind::Float)
}

#[test]
fn a_gradient_that_arrives_in_parts_is_sent_when_it_is_whole_and_one_part_more_is_refused() {
    ranks_on(Backend::Gloo, 2, |group| {
        let vs = VarStore::new(Device::Cpu);
        let weight = vs.root().var("weight", &[4], nn::Init::Const(1.0));
        let options = DdpOptions { virtual_ranks: NonZeroUsize::new(4), ..Default::default() };
        let model = DistributedDataParallel::new((), &vs, group, &options).unwrap();
        let step = |times: &dyn Fn(usize) -> usize| -> c10d::Result<()> {
            c10d::clear_grad(&mut weight.shallow_clone()).unwrap();
            for (pass, v) in model.virtual_ranks().own().enumerate() {
                let inputs = Tensor::full([4], v.get() as f64, (Kind::Float, Device::Cpu)).set_requires_grad(true);
                let uses = || (0..times(pass)).map(|_| used_twice(&weight, &inputs));
                let loss = model.forward_with(|()| uses().reduce(|sum, use_| sum + use_).unwrap()).unwrap();
                model.backward(&loss)?;
            }
            Ok(())
        };
        for times in [1, 2] {
            step(&|_| times).unwrap();
            let mean = 2.0 * times as f32 * (0.0 + 1.0 + 2.0 + 3.0) / 4.0;
            assert_eq!(bits(&weight.grad()), bits(&Tensor::from_slice(&[mean; 4])));
        }
        let error = step(&|pass| pass + 1).unwrap_err().to_string();
        assert!(error.contains("the gradient of weight has more parts than in the pass before"), "{error}");
    });
}

/// The largest subtrees of the tree of 8 that some neighbouring virtual ranks are: each begins at a multiple of its size.
fn subtrees(own: &[usize]) -> u64 {
    let (mut rest, mut count) = (own, 0);
    while let [first, ..] = rest {
        let size = [8, 4, 2, 1].into_iter().find(|size| first.is_multiple_of(*size) && *size <= rest.len()).unwrap();
        (rest, count) = (&rest[size..], count + 1);
    }
    count
}

/// A reduce-scatter of each subtree, and an all-gather of the rank's share.
#[test]
fn a_step_sends_as_many_bytes_as_the_formula_says() {
    const COUNT: usize = 8;
    for world in 1..=COUNT {
        let sent = ranks_on(Backend::Gloo, world, |group| {
            let vs = VarStore::new(Device::Cpu);
            let net = network(ElasticModel::Mlp, &vs, 0.0).unwrap();
            let options = DdpOptions { virtual_ranks: NonZeroUsize::new(COUNT), ..Default::default() };
            let model = DistributedDataParallel::new(net, &vs, Rc::clone(&group), &options).unwrap();
            let elements: usize = vs.trainable_variables().iter().map(Tensor::numel).sum();
            let (ranks, before) = (model.virtual_ranks(), group.traffic().unwrap().bytes);
            for v in ranks.own() {
                let inputs = formula_tensor(&[2, 20], v.get() as i64, 1.0);
                model.backward(&model.forward(&inputs).unwrap().mean(Kind::Float)).unwrap();
            }
            let sent = group.traffic().unwrap().bytes - before;
            let own: Vec<usize> = ranks.own().map(Rank::get).collect();
            let (bytes, world) = (4 * elements.next_multiple_of(world) as u64, world as u64);
            (sent, if world == 1 { 0 } else { bytes * subtrees(&own) + bytes / world })
        });
        for (rank, (sent, formula)) in sent.into_iter().enumerate() {
            // The sum of two has one order: an all-reduce, which counts the tensor once, for both of its halves.
            let all_reduced = if world == 2 { formula / 3 * 2 } else { formula };
            assert_eq!(sent, all_reduced, "rank {rank} of {world}");
        }
    }
}

// ---- refusals

fn message<T: Debug, E: Debug + ToString>(result: Result<T, E>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn refuses_what_it_does_not_support_and_says_what_to_do() {
    ranks_on(Backend::Gloo, 1, |group| {
        let vs = VarStore::new(Device::Cpu);
        let layer = nn::linear(vs.root() / "fc", 3, 3, Default::default());
        let options = DdpOptions { virtual_ranks: NonZeroUsize::new(2), ..Default::default() };
        let wrap = |options: DdpOptions, sparse: &[&str]| {
            let variables = DdpVariables { sparse, ..Default::default() };
            let net = nn::seq().add_fn(Tensor::shallow_clone);
            DistributedDataParallel::new_with(net, &vs, Rc::clone(&group), &options, &variables)
        };
        for (options, sparse, named) in [
            (DdpOptions { comm_hook: Some(CommHook::Fp16Compress), ..options }, &[][..], "comm_hook"),
            (DdpOptions { gradient_as_bucket_view: true, ..options }, &[], "gradient_as_bucket_view"),
            (DdpOptions { static_graph: true, ..options }, &[], "static_graph"),
            (DdpOptions { broadcast_buffers: false, ..options }, &[], "broadcast_buffers"),
            (options, &["fc.weight"], "sparse gradients"),
        ] {
            let error = message(wrap(options, sparse));
            assert!(error.contains(&format!("virtual ranks do not work with {named}")), "{error}");
        }
        let model = wrap(options, &[]).unwrap();
        let error = message(accumulate(&model, &[1], |_| 1, |_| Ok(Tensor::from(1f32))));
        assert!(error.contains("call accumulate_virtual"), "{error}");
        let error =
            message(accumulate_virtual(&model, &[(Rank::ZERO, vec![1])], |_| 1, |_, _, _| Ok(Tensor::from(1f32))));
        assert!(error.contains("virtual ranks [0, 1], and micro-batches of [0]"), "{error}");

        let zeros = Tensor::zeros([2, 2, 4, 4], (Kind::Float, Device::Cpu));
        let norm = SyncBatchNorm2d::new(&(vs.root() / "bn"), 2, Rc::clone(&group), &SyncBatchNormOptions::default());
        let own = VarStore::new(Device::Cpu);
        let unit = nn::linear(own.root() / "unit", 4, 4, Default::default());
        let sharded = FullyShard::new(&own, Rc::clone(&group), &["unit"], &FullyShardOptions::default()).unwrap();
        let layers: [(&str, &dyn Fn() -> c10d::Result<Tensor>); 4] = [
            ("SyncBatchNorm2d", &|| norm.try_forward_t(&zeros, true)),
            ("tensor parallelism", &|| sum_over_ranks(&group, &zeros)),
            ("context parallelism", &|| ring_attention(&group, &zeros, &zeros, &zeros)),
            ("full sharding", &|| sharded.forward("unit", &zeros, |x| unit.forward(x))),
        ];
        for (named, layer) in layers {
            assert!(layer().is_ok(), "{named} outside");
            let model = wrap(options, &[]).unwrap();
            let error = message(model.forward_with(|_| layer().unwrap_or_else(|error| raise(error))));
            assert!(error.contains(named) && error.contains("leave it out, or virtual ranks"), "{error}");
        }

        let part = |xs: &Tensor| model.forward_with(|_| xs.linear(&layer.ws, None::<Tensor>).sum(Kind::Float)).unwrap();
        let xs = formula_tensor(&[2, 3], 1, 1.0);
        let error = message(model.backward(&part(&xs)));
        assert!(error.contains("fc.bias has no gradient after the backward pass of virtual rank 0"), "{error}");
        let error = message(model.reducer());
        assert!(error.contains("virtual ranks sum their gradients without one"), "{error}");
        c10d::backward(&xs.linear(&layer.ws, None::<Tensor>).sum(Kind::Float)).unwrap();
        let error = message(wrap(options, &[]).unwrap().forward(&xs));
        assert!(error.contains("call the optimizer's zero_grad"), "{error}");
    });
    let error = ranks_on(Backend::Gloo, 3, |group| message(VirtualRanks::new(NonZeroUsize::new(2).unwrap(), &group)));
    assert!(error[0].contains("3 ranks are more than 2 virtual ranks") && error[0].contains("start 2"), "{}", error[0]);
}

#[test]
fn a_parameter_that_no_virtual_rank_uses_keeps_no_gradient() {
    let grads = |world| {
        ranks_on(Backend::SharedMemory, world, |group| {
            let vs = VarStore::new(Device::Cpu);
            let [first, second, third] = ["a", "b", "c"].map(|name| vs.root().var(name, &[2], nn::Init::Const(1.0)));
            let virtual_ranks = NonZeroUsize::new(6);
            let options = DdpOptions { virtual_ranks, find_unused_parameters: true, ..Default::default() };
            let model = DistributedDataParallel::new((), &vs, group, &options).unwrap();
            for v in model.virtual_ranks().own() {
                let used = if v.get() == 4 { &first + &second } else { first.shallow_clone() };
                let loss = model.forward_with(|()| (used * (v.get() as f64 + 0.1)).sum(Kind::Float)).unwrap();
                model.backward(&loss).unwrap();
            }
            [first, second, third].map(|param| param.grad().defined().then(|| bits(&param.grad())))
        })
    };
    let alone = grads(1);
    let [a, b, c] = &alone[0];
    assert!(a.is_some() && *b == Some(bits(&Tensor::from_slice(&[4.1f32 / 6.0; 2]))) && c.is_none(), "{alone:?}");
    for world in 2..=4 {
        assert!(grads(world).iter().all(|grads| *grads == alone[0]), "{world} ranks");
    }
}
