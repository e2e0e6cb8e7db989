//! A training of virtual ranks ends with the same bits on any number of ranks, and when that number changes between two steps: over
//! shared memory, Gloo and two levels, for each kind of model, optimizer and step. Ranks are threads, which resume from real snapshots; lab
//! 06 has the same for processes that are killed.

use std::fmt::Debug;
use std::num::NonZeroUsize;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use c10d::{Backend, CommHook, Endpoint, GroupOptions, ProcessGroup, Rank, Store, WorldSize};
use lockstep::accumulate::{accumulate, accumulate_virtual};
use lockstep::amp::{GradScaler, GradScalerState, Precision};
use lockstep::data::{Batch, Dataset};
use lockstep::elastic::{VirtualLoader, VirtualRanks};
use lockstep::loader::{DataLoader, Position};
use lockstep::loss::CrossEntropy;
use lockstep::metrics::{EvalOptions, Evaluation, evaluate_with};
use lockstep::models::gpt::{Gpt, GptConfig, Positions};
use lockstep::models::{Depth, ResNet, ResNetOptions};
use lockstep::nn::{SyncBatchNorm2d, SyncBatchNormOptions, raise};
use lockstep::optim::{
    AdamW, AdamWOptions, GradParts, Optimizer, Sgd, SgdOptions, ZeroRedundancyOptimizer, clip_grad_norm,
    named_parameters,
};
use lockstep::parallel::context::ring_attention;
use lockstep::parallel::tensor::sum_over_ranks;
use lockstep::parallel::{FullyShard, FullyShardOptions};
use lockstep::rng::{KeyedRng, step_seed};
use lockstep::sampler::DistributedSampler;
use lockstep::snapshot::{Run, Save, SnapshotOptions, Snapshots};
use lockstep::{DdpOptions, DdpVariables, DistributedDataParallel};
use lockstep_testkit::margin;
use proptest::prelude::*;
use tch::nn::{self, Module, ModuleT, VarStore};
use tch::{Device, Kind, Tensor, no_grad};

use crate::common::{bits, formula, formula_tensor};
use crate::snapshot::reporter;

const SEED: u64 = 5;
const BATCH: usize = 4;
const CLASSES: i64 = 4;

// ---- what is trained

#[derive(Clone, Copy, Debug, PartialEq)]
enum Model {
    /// Two layers with dropout between them.
    Mlp,
    /// ResNet-18 of few channels, with batch norm; pictures are mirrored at random.
    ResNet,
    /// With dropout on the logits.
    Gpt,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Updates {
    Sgd,
    AdamW,
    /// AdamW with its state divided among the ranks.
    Zero,
}

/// A training, apart from its ranks.
#[derive(Clone, Copy, Debug)]
struct Training {
    model: Model,
    updates: Updates,
    /// Virtual ranks; without, each rank is one.
    virtual_ranks: Option<usize>,
    micro_batches: usize,
    clip: Option<f64>,
    precision: Precision,
}

const PLAIN: Training = Training {
    model: Model::Mlp,
    updates: Updates::Sgd,
    virtual_ranks: Some(4),
    micro_batches: 1,
    clip: None,
    precision: Precision::Float32,
};

/// Samples by formula. A picture is mirrored in half of the epochs.
struct Samples(Model);

impl Samples {
    fn shape(&self) -> &'static [i64] {
        match self.0 {
            Model::Mlp => &[20],
            Model::ResNet => &[3, 16, 16],
            Model::Gpt => &[6],
        }
    }
}

impl Dataset for Samples {
    fn len(&self) -> usize {
        50
    }

    fn batch(&self, epoch: u64, indices: &[usize]) -> anyhow::Result<Batch> {
        let samples: Vec<Tensor> = indices
            .iter()
            .map(|&i| {
                let sample = formula_tensor(self.shape(), i as i64 + 3, 1.0);
                match self.0 {
                    Model::Mlp => sample,
                    Model::ResNet if KeyedRng::new(&[SEED, epoch, i as u64]).below(2) == 1 => sample.flip([2]),
                    Model::ResNet => sample,
                    Model::Gpt => (sample.abs() * 11.0).to_kind(Kind::Int64).clamp(0, 10),
                }
            })
            .collect();
        let target = |i: &usize| (i * i + i / 3) as i64 % CLASSES;
        let targets = match self.0 {
            Model::Gpt => {
                Tensor::from_slice(&indices.iter().flat_map(|i| [target(i); 6]).collect::<Vec<_>>()).view([-1, 6])
            }
            _ => Tensor::from_slice(&indices.iter().map(target).collect::<Vec<_>>()),
        };
        Ok(Batch { inputs: Tensor::stack(&samples, 0), targets })
    }
}

#[derive(Debug)]
struct Net(Box<dyn ModuleT>);

impl ModuleT for Net {
    fn forward_t(&self, inputs: &Tensor, train: bool) -> Tensor {
        self.0.forward_t(inputs, train)
    }
}

fn network(model: Model, vs: &VarStore) -> Net {
    let root = vs.root();
    let net: Box<dyn ModuleT> = match model {
        Model::Mlp => {
            let [first, second] = [("0", 20, 16), ("2", 16, CLASSES)]
                .map(|(name, from, to)| nn::linear(&root / name, from, to, Default::default()));
            Box::new(nn::seq().add(first).add_fn(Tensor::relu).add(second))
        }
        Model::ResNet => {
            Box::new(ResNet::new(&root, Depth::Eighteen, &ResNetOptions { width: 4, ..ResNetOptions::new(CLASSES) }))
        }
        Model::Gpt => {
            let (layers, heads, width, positions) = (2, 2, 8, Positions::Learned);
            Box::new(
                Gpt::new(&root, GptConfig { vocabulary: 11, context: 6, layers, heads, width, positions }).unwrap(),
            )
        }
    };
    // The generator of random weights belongs to all threads.
    for (salt, (_, param)) in named_parameters(vs).into_iter().enumerate() {
        no_grad(|| param.shallow_clone().copy_(&formula_tensor(&param.size(), salt as i64 + 1, 0.25)));
    }
    Net(net)
}

/// The logits, of which one in five is dropped as the seed of the virtual rank's step says.
fn dropped(logits: &Tensor, epoch: u64, step: usize, v: Rank) -> Tensor {
    let mut draw = KeyedRng::new(&[step_seed(SEED, epoch, step, v) as u64]);
    let mask: Vec<f32> = (0..logits.numel()).map(|_| if draw.below(5) == 0 { 0.0 } else { 1.25 }).collect();
    logits * Tensor::from_slice(&mask).view(&*logits.size())
}

// ---- the training loop

/// What is the same for any number of ranks.
#[derive(Clone, Debug, Default, PartialEq)]
struct Outcome {
    /// The mean loss of each step, as bits.
    losses: Vec<u64>,
    /// After the last step.
    evaluation: Vec<u64>,
    /// All parameters and buffers.
    weights: Vec<Vec<u32>>,
}

/// Trains from the newest snapshot in `folder` up to the step `until`, counted over all epochs, and saves another one.
fn train(group: Rc<ProcessGroup>, training: &Training, folder: &Path, until: usize) -> Outcome {
    let Training { model: kind, updates, micro_batches, clip, precision, .. } = *training;
    let (vs, report, set) = (VarStore::new(Device::Cpu), reporter(&group), Arc::new(Samples(kind)));
    let net = network(kind, &vs);
    let virtual_ranks = training.virtual_ranks.and_then(NonZeroUsize::new);
    let options = DdpOptions { virtual_ranks, fixed_buckets: true, ..Default::default() };
    let model = DistributedDataParallel::new(net, &vs, Rc::clone(&group), &options).unwrap();
    let (ranks, params) = (model.virtual_ranks(), named_parameters(&vs));
    let sgd = SgdOptions { lr: 0.05, momentum: 0.9, weight_decay: 1e-3, ..Default::default() };
    let adam = AdamWOptions { lr: 0.01, ..Default::default() };
    let named = named_parameters(&vs);
    let mut optimizer: Box<dyn Optimizer> = match updates {
        Updates::Sgd => Box::new(Sgd::new(named, sgd).unwrap()),
        Updates::AdamW => Box::new(AdamW::new(named, adam).unwrap()),
        Updates::Zero => Box::new(ZeroRedundancyOptimizer::new(named, adam, Rc::clone(&group)).unwrap()),
    };
    let mut scaler: GradScaler = precision.scaler();
    // Without a last batch of one picture, which has no variance.
    let whole = kind == Model::ResNet;
    let loader = VirtualLoader::new(ranks, |v| {
        let sampler = DistributedSampler::new(set.len(), v, ranks.count())?.seed(SEED);
        anyhow::Ok(DataLoader::new(Arc::clone(&set) as Arc<dyn Dataset>, sampler, BATCH)?.drop_last(whole))
    })
    .unwrap();
    let run = Run { seed: SEED, samples: set.len(), data: 0, batch_size: BATCH };
    let options = SnapshotOptions { virtual_ranks, background: false, ..Default::default() };
    let mut snapshots = Snapshots::new(folder, run, options, &report);
    let (mut here, saved) = snapshots.resume_with::<GradScalerState>(&vs, &mut *optimizer, &group).unwrap();
    saved.into_iter().for_each(|state| scaler.load_state_dict(state).unwrap());

    let (mut losses, criterion) = (Vec::new(), CrossEntropy::default());
    let done = |here: Position| here.epoch as usize * loader.steps() + here.step;
    while done(here) < until {
        let (from, epoch) = (here, here.epoch);
        for (step, batches) in (from.step..).zip(loader.epoch_at(from)) {
            if done(here) == until {
                break;
            }
            optimizer.zero_grad();
            let pass = |v: Rank, batch: &Batch| {
                let forward = || {
                    let logits = model.forward(&batch.inputs).unwrap();
                    if kind == Model::ResNet { logits } else { dropped(&logits, epoch, step, v) }
                };
                precision.autocast(Device::Cpu, forward).unwrap().to_kind(Kind::Float)
            };
            let batches = batches.unwrap();
            let loss = if micro_batches > 1 {
                let parts = |tensor: &Tensor| tensor.chunk(micro_batches as i64, 0);
                let split = |batch: Batch| parts(&batch.inputs).into_iter().zip(parts(&batch.targets));
                let micro = batches.into_iter().map(|(v, batch)| {
                    (v, split(batch).map(|(inputs, targets)| Batch { inputs, targets }).collect::<Vec<_>>())
                });
                let micro: Vec<_> = micro.collect();
                accumulate_virtual(
                    &model,
                    &micro,
                    |batch| criterion.count(&batch.targets),
                    |v, _, batch| criterion.sum(&pass(v, batch), &batch.targets),
                )
                .unwrap()
            } else {
                let mut own = Vec::new();
                for (v, batch) in batches {
                    let loss = criterion.loss(&pass(v, &batch), &batch.targets);
                    model.backward(&scaler.scale(&loss).unwrap()).unwrap();
                    own.push(loss.double_value(&[]));
                }
                ranks.mean(&group, &own).unwrap()
            };
            losses.push(loss.to_bits());
            if let Some(norm) = clip {
                scaler.unscale(&*optimizer).unwrap();
                clip_grad_norm(&[GradParts::whole(&params)], norm).unwrap();
            }
            scaler.step(&mut *optimizer).unwrap();
            scaler.update().unwrap();
            here = loader.after(from, step);
        }
    }
    model.sync_buffers().unwrap();
    snapshots.save_if(true, Save::new(here, &vs, &*optimizer).with(&scaler.state_dict()), &group).unwrap();
    snapshots.finish().unwrap();
    let test_set: Arc<dyn Dataset> = set;
    let options = EvalOptions { batch_size: 3, ..Default::default() };
    let scored: Evaluation = evaluate_with(&model, test_set, Device::Cpu, &options).unwrap();
    let mut variables: Vec<_> = vs.variables().into_iter().collect();
    variables.sort_by(|(a, _), (b, _)| a.cmp(b));
    let weights = variables.iter().map(|(_, tensor)| bits(&tensor.to_kind(Kind::Float))).collect();
    Outcome { losses, evaluation: [scored.loss(), scored.accuracy()].map(f64::to_bits).into(), weights }
}

/// As `common::ranks_on`. Over two levels, every other rank is on a second host.
fn ranks_on<T: Send>(backend: Backend, world: usize, body: impl Fn(Rc<ProcessGroup>) -> T + Send + Sync) -> Vec<T> {
    if backend != Backend::TwoLevels {
        return crate::common::ranks_on(backend, world, body);
    }
    let (store, world) = (Arc::new(Store::hash().unwrap()), WorldSize::new(world).unwrap());
    let group = |rank: Rank| {
        let options = GroupOptions {
            timeout: Duration::from_secs(600),
            endpoint: Endpoint::Interface("lo".into()),
            simulated_host: Some((rank.get() % 2).to_string()),
            ..GroupOptions::default()
        };
        Rc::new(ProcessGroup::new(backend, &store, rank, world, &options).unwrap())
    };
    std::thread::scope(|scope| {
        let (body, group) = (&body, &group);
        let threads: Vec<_> = world.ranks().map(|rank| scope.spawn(move || body(group(rank)))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank panicked")).collect()
    })
}

/// Trains on numbers of ranks, each up to a step. All ranks must agree.
fn run(training: &Training, backend: Backend, schedule: &[(usize, usize)]) -> Outcome {
    tch::set_num_threads(1);
    let folder = tempfile::tempdir().unwrap();
    let mut all = Outcome::default();
    for &(world, until) in schedule {
        let outcomes = ranks_on(backend, world, |group| train(group, training, folder.path(), until));
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
fn assert_alike(training: &Training, steps: usize, others: &[(Backend, &[(usize, usize)])]) {
    let alone = run(training, Backend::Gloo, &[(1, steps)]);
    assert_eq!(alone.losses.len(), steps);
    assert!(alone.losses.first() != alone.losses.last(), "it learns");
    for (backend, schedule) in others {
        let other = run(training, *backend, schedule);
        assert!(other == alone, "{schedule:?} over {} differs from one rank: {training:?}", backend.name());
    }
}

/// W = 2, 3 and 4 over shared memory and Gloo, and changes of W.
fn assert_alike_on_all(training: Training, steps: usize) {
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
        assert_alike_on_all(Training { virtual_ranks: Some(virtual_ranks), ..PLAIN }, 8);
    }
}

#[test]
fn so_has_a_resnet_with_batch_norm_and_mirrored_pictures() {
    assert_alike_on_all(Training { model: Model::ResNet, virtual_ranks: Some(6), ..PLAIN }, 4);
}

#[test]
fn so_has_a_gpt_with_dropout_under_adamw_with_clipping_and_micro_batches() {
    let training = Training { model: Model::Gpt, updates: Updates::AdamW, clip: Some(0.5), micro_batches: 2, ..PLAIN };
    for virtual_ranks in [4, 6] {
        assert_alike_on_all(Training { virtual_ranks: Some(virtual_ranks), ..training }, 6);
    }
}

#[test]
fn so_have_divided_states_with_micro_batches() {
    assert_alike_on_all(Training { updates: Updates::Zero, micro_batches: 2, virtual_ranks: Some(6), ..PLAIN }, 6);
}

#[test]
fn so_has_mixed_precision_with_a_scaled_loss() {
    let training = Training { precision: Precision::Float16, clip: Some(1.0), virtual_ranks: Some(6), ..PLAIN };
    assert_alike_on_all(training, 6);
    assert_alike_on_all(Training { model: Model::Gpt, precision: Precision::Bfloat16, ..PLAIN }, 4);
}

#[test]
fn two_levels_of_hosts_have_the_same_bits() {
    let training = Training { virtual_ranks: Some(6), ..PLAIN };
    assert_alike(&training, 5, &[(Backend::TwoLevels, &[(3, 2), (4, 5)])]);
}

#[test]
fn as_many_ranks_as_virtual_ones_are_plain_ddp_in_shared_memory() {
    for (world, model) in [(2, Model::Mlp), (3, Model::ResNet), (4, Model::Mlp), (6, Model::Gpt)] {
        let elastic = Training { model, virtual_ranks: Some(world), ..PLAIN };
        let plain = Training { virtual_ranks: None, ..elastic };
        let [elastic, plain] = [elastic, plain].map(|training| {
            let folder = tempfile::tempdir().unwrap();
            let outcomes = ranks_on(Backend::SharedMemory, world, |group| train(group, &training, folder.path(), 4));
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
        let training = Training { virtual_ranks: Some(virtual_ranks), clip: Some(1.0), ..PLAIN };
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
    let net = network(Model::Mlp, &vs);
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

// ---- what is sent

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
            let net = network(Model::Mlp, &vs);
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
