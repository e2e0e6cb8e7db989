//! Fully sharded training: what one rank does with the whole batch, and memory that is really freed.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::common::{formula_tensor, ranks, values};
use c10d::{ProcessGroup, Storage};
use lockstep::optim::{AdamWOptions, FusedOptimizer, Optimizer, Rule, SgdOptions, named_parameters};
use lockstep::parallel::{FullyShard, FullyShardOptions, MixedPrecision};
use lockstep::{DdpOptions, DistributedDataParallel};
use lockstep_process::watchdog::until;
use lockstep_testkit::{Job, margin};
use tch::nn::{self, Module, VarStore};
use tch::{Device, Kind, Reduction, Tensor, no_grad};

const STEPS: i64 = 4;
/// Divided by every number of ranks.
const SAMPLES: i64 = 12;
const UNITS: [&str; 3] = ["first", "middle", "last"];
/// Elements of the units: 5 × 7 + 7 + 1, 7 × 7 + 7, 7 × 3 + 3.
const ELEMENTS: [i64; 3] = [43, 56, 24];

/// No number of ranks divides all units, and the second is used twice.
#[derive(Debug)]
pub(crate) struct Net {
    first: nn::Linear,
    scale: Tensor,
    middle: nn::Linear,
    last: nn::Linear,
}

impl Net {
    pub(crate) fn new(kind: Kind) -> (VarStore, Net) {
        let mut vs = VarStore::new(Device::Cpu);
        let root = vs.root();
        let linear = |name: &str, inputs, outputs| nn::linear(&root / name, inputs, outputs, Default::default());
        let (first, middle, last) = (linear("first", 5, 7), linear("middle", 7, 7), linear("last", 7, 3));
        let scale = (&root / "first").ones("scale", &[]);
        vs.set_kind(kind);
        for (salt, (_, mut param)) in named_parameters(&vs).into_iter().enumerate() {
            no_grad(|| param.copy_(&formula_tensor(&param.size(), salt as i64 + 1, 0.5)));
        }
        (vs, Net { first, scale, middle, last })
    }

    fn units(&self) -> [impl Fn(&Tensor) -> Tensor; 3] {
        let of = |unit: usize| {
            move |x: &Tensor| match unit {
                0 => (self.first.forward(x) * &self.scale).tanh(),
                1 => self.middle.forward(x).tanh(),
                _ => self.last.forward(x),
            }
        };
        [of(0), of(1), of(2)]
    }

    pub(crate) fn forward(&self, x: &Tensor) -> Tensor {
        let [first, middle, last] = self.units();
        last(&middle(&middle(&first(x))))
    }

    pub(crate) fn sharded(&self, model: &FullyShard, x: &Tensor) -> Tensor {
        let [first, middle, last] = self.units();
        let hidden = model.forward("first", x, first).unwrap();
        let hidden = model.forward("middle", &hidden, &middle).unwrap();
        let hidden = model.forward("middle", &hidden, &middle).unwrap();
        model.forward("last", &hidden, last).unwrap()
    }

    /// The same, with activations that are computed again in the backward pass.
    fn checkpointed(self: &Rc<Self>, model: &FullyShard, x: &Tensor) -> Tensor {
        ["first", "middle", "middle", "last"].into_iter().fold(x.shallow_clone(), |x, unit| {
            let net = Rc::clone(self);
            let at = UNITS.iter().position(|name| *name == unit).unwrap();
            model.forward_checkpointed(unit, &x, move |x| net.units()[at](x)).unwrap()
        })
    }
}

/// One rank's part of a step's samples.
pub(crate) fn batch(step: i64, kind: Kind, group: Option<&ProcessGroup>) -> (Tensor, Tensor) {
    let (rank, ranks) = group.map_or((0, 1), |group| (group.rank().get() as i64, group.size().get() as i64));
    let of = |width: i64, salt| {
        let all = formula_tensor(&[SAMPLES, width], salt, 1.0).to_kind(kind);
        all.narrow(0, rank * SAMPLES / ranks, SAMPLES / ranks)
    };
    (of(5, 100 + step), of(3, 200 + step))
}

pub(crate) fn loss(output: &Tensor, targets: &Tensor) -> Tensor {
    output.to_kind(targets.kind()).mse_loss(targets, Reduction::Mean)
}

/// What a training leaves: the losses, and the gradients of the last step and the parameters, by name.
#[derive(Clone, Debug, Default)]
struct Trained {
    losses: Vec<f64>,
    grads: BTreeMap<String, Vec<f64>>,
    params: BTreeMap<String, Vec<f64>>,
}

impl Trained {
    fn of(losses: Vec<f64>, vs: &VarStore) -> Self {
        let of = |get: fn(&Tensor) -> Tensor| {
            let tensors = named_parameters(vs).into_iter().map(|(name, param)| (name, get(&param)));
            tensors.filter(|(_, tensor)| tensor.defined()).map(|(name, tensor)| (name, values(&tensor))).collect()
        };
        Trained { losses, grads: of(Tensor::grad), params: of(|param| param.detach()) }
    }

    /// The greatest difference; the losses are the mean of the ranks'.
    fn distance(ranks: &[Trained], other: &Trained) -> f64 {
        let far = |a: f64, b: f64| (a - b).abs();
        let all = |a: &BTreeMap<String, Vec<f64>>, b: &BTreeMap<String, Vec<f64>>| {
            assert!(a.keys().eq(b.keys()), "{:?} {:?}", a.keys(), b.keys());
            let pairs = a.values().flatten().zip(b.values().flatten());
            pairs.map(|(a, b)| far(*a, *b)).fold(0.0, f64::max)
        };
        let mean = |step: usize| ranks.iter().map(|rank| rank.losses[step]).sum::<f64>() / ranks.len() as f64;
        let losses = other.losses.iter().enumerate().map(|(step, loss)| far(mean(step), *loss)).fold(0.0, f64::max);
        let of = |rank: &Trained| all(&rank.grads, &other.grads).max(all(&rank.params, &other.params));
        ranks.iter().map(of).fold(losses, f64::max)
    }
}

/// On one rank with the whole batch, without a group.
fn train_whole<R: Rule>(options: &R, kind: Kind) -> Trained {
    let (vs, net) = Net::new(kind);
    let mut optimizer = FusedOptimizer::new(named_parameters(&vs), options.clone()).unwrap();
    let step = |step| {
        let (inputs, targets) = batch(step, kind, None);
        optimizer.zero_grad();
        let loss = loss(&net.forward(&inputs), &targets);
        loss.backward();
        optimizer.step().unwrap();
        loss.double_value(&[])
    };
    Trained::of((0..STEPS).map(step).collect(), &vs)
}

fn train_ddp<R: Rule>(group: Rc<ProcessGroup>, options: &R, kind: Kind) -> Trained {
    let (vs, net) = Net::new(kind);
    let mut optimizer = FusedOptimizer::new(named_parameters(&vs), options.clone()).unwrap();
    let ddp = DistributedDataParallel::new(net, &vs, Rc::clone(&group), &DdpOptions::default()).unwrap();
    let step = |step| {
        let (inputs, targets) = batch(step, kind, Some(&group));
        optimizer.zero_grad();
        let output = ddp.forward_with(|net| net.forward(&inputs)).unwrap();
        let loss = loss(&output, &targets);
        ddp.backward(&loss).unwrap();
        optimizer.step().unwrap();
        loss.double_value(&[])
    };
    Trained::of((0..STEPS).map(step).collect(), &vs)
}

pub(crate) fn sharded(
    group: &Rc<ProcessGroup>,
    kind: Kind,
    options: &FullyShardOptions,
) -> (VarStore, Net, FullyShard) {
    let (vs, net) = Net::new(kind);
    let model = FullyShard::new(&vs, Rc::clone(group), &UNITS, options).unwrap();
    (vs, net, model)
}

/// Joins the ranks' parts of vectors of all parameters.
fn joined(group: &ProcessGroup, model: &FullyShard, parts: Vec<Tensor>) -> BTreeMap<String, Vec<f64>> {
    let own: Vec<_> = model.pieces().into_iter().zip(parts).map(|(piece, part)| (piece.name, values(&part))).collect();
    let all = lockstep::all_gather_object(group, &own).unwrap();
    let mut joined: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    all.into_iter().flatten().for_each(|(name, part)| joined.entry(name).or_default().extend(part));
    joined
}

fn train_sharded<R: Rule>(group: Rc<ProcessGroup>, options: &R, kind: Kind, shard: &FullyShardOptions) -> Trained {
    train_sharded_by(|net, model, x| net.sharded(model, x), group, options, kind, shard)
}

fn train_sharded_by<R: Rule>(
    forward: impl Fn(&Rc<Net>, &FullyShard, &Tensor) -> Tensor,
    group: Rc<ProcessGroup>,
    options: &R,
    kind: Kind,
    shard: &FullyShardOptions,
) -> Trained {
    let (vs, net, model) = sharded(&group, kind, shard);
    let net = Rc::new(net);
    let mut optimizer = FusedOptimizer::new(model.named_parameters(), options.clone()).unwrap();
    let step = |step| {
        let (inputs, targets) = batch(step, kind, Some(&group));
        optimizer.zero_grad();
        let loss = loss(&forward(&net, &model, &inputs), &targets);
        model.backward(&loss).unwrap();
        optimizer.step().unwrap();
        loss.double_value(&[])
    };
    let losses = (0..STEPS).map(step).collect();
    let grads = model.named_parameters().iter().map(|(_, part)| part.grad()).collect();
    let grads = joined(&group, &model, grads);
    let params = model.summon_full_params(|| Trained::of(Vec::new(), &vs).params).unwrap();
    Trained { losses, grads, params }
}

pub(crate) fn adam_w() -> AdamWOptions {
    AdamWOptions { lr: 0.05, ..Default::default() }
}

fn sgd() -> SgdOptions {
    SgdOptions { lr: 0.1, momentum: 0.9, weight_decay: 0.01, ..Default::default() }
}

fn equals_one_rank_and_ddp<R: Rule + Sync>(options: R) {
    let whole = train_whole(&options, Kind::Double);
    for world in 1..=4 {
        let ddp = ranks(world, |group| train_ddp(group, &options, Kind::Double));
        for reshard_after_forward in [true, false] {
            let shard = FullyShardOptions { reshard_after_forward, ..Default::default() };
            let trained = ranks(world, |group| train_sharded(group, &options, Kind::Double, &shard));
            for (name, other) in [("one rank", &whole), ("DDP", &ddp[0])] {
                let losses = if name == "DDP" { &whole.losses } else { &other.losses };
                let other = Trained { losses: losses.clone(), ..other.clone() };
                let distance = Trained::distance(&trained, &other);
                let what = format!("{world} ranks, reshard {reshard_after_forward}: distance from {name}");
                margin::below(what, distance, 1e-10);
            }
        }
    }
}

#[test]
fn sgd_with_momentum_does_what_one_rank_does() {
    equals_one_rank_and_ddp(sgd());
}

#[test]
fn adam_w_does_what_one_rank_does() {
    equals_one_rank_and_ddp(adam_w());
}

#[test]
fn activations_that_are_computed_again_do_what_one_rank_does() {
    let whole = train_whole(&adam_w(), Kind::Double);
    for world in 1..=3 {
        for reshard_after_forward in [true, false] {
            let shard = FullyShardOptions { reshard_after_forward, ..Default::default() };
            let trained =
                ranks(world, |group| train_sharded_by(Net::checkpointed, group, &adam_w(), Kind::Double, &shard));
            let what =
                format!("{world} ranks, reshard {reshard_after_forward}, computed again: distance from one rank");
            margin::below(what, Trained::distance(&trained, &whole), 1e-10);
        }
    }
}

#[test]
fn what_is_computed_again_sends_no_byte_more() {
    ranks(2, |group| {
        let (_vs, net, model) = sharded(&group, Kind::Double, &FullyShardOptions::default());
        let (net, runs) = (Rc::new(net), Rc::new(Cell::new(0)));
        let step = |checkpointed: bool| {
            let (inputs, targets) = batch(0, Kind::Double, Some(&group));
            let before = group.traffic().unwrap();
            let output = UNITS.iter().enumerate().fold(inputs, |x, (at, unit)| {
                let (net, runs) = (Rc::clone(&net), Rc::clone(&runs));
                let body = move |x: &Tensor| {
                    runs.set(runs.get() + 1);
                    net.units()[at](x)
                };
                let output = match checkpointed {
                    true => model.forward_checkpointed(unit, &x, body),
                    false => model.forward(unit, &x, body),
                };
                output.unwrap()
            });
            model.backward(&loss(&output, &targets)).unwrap();
            soon(|| (model.bytes().gathered, model.bytes().unreduced), (0, 0));
            let sent = group.traffic().unwrap() - before;
            (runs.take(), (sent.bytes, sent.calls))
        };
        let ((once, sent), (twice, sent_again)) = (step(false), step(true));
        assert_eq!((once, twice), (3, 6));
        assert_eq!(sent, sent_again);
    });
}

/// Without prefetch the order of the sums is the same.
#[test]
fn prefetching_changes_no_bit() {
    let ended = [true, false].map(|prefetch| {
        let shard = FullyShardOptions { prefetch, ..Default::default() };
        ranks(3, |group| train_sharded(group, &adam_w(), Kind::Float, &shard).params)
    });
    assert_eq!(ended[0], ended[1]);
}

/// Waits until `count` gives `expected`: Gloo's threads let go of tensors a moment after they have woken the rank.
fn soon<T: PartialEq + std::fmt::Debug>(count: impl Fn() -> T, expected: T) {
    until(|| count() == expected).unwrap_or_else(|why| panic!("{:?} is not {expected:?}: {why}", count()));
}

#[test]
fn memory_is_freed_between_the_passes_of_a_unit() {
    ranks(3, |group| {
        let (_vs, net, model) =
            sharded(&group, Kind::Double, &FullyShardOptions { prefetch: false, ..Default::default() });
        let length = |unit: usize| (ELEMENTS[unit] + 2) / 3 * 3;
        let own = ELEMENTS.iter().map(|elements| (elements + 2) / 3 * 8).sum::<i64>() as u64;
        let bytes = model.bytes();
        assert_eq!((bytes.parameters, bytes.gradients, bytes.gathered, bytes.unreduced), (own, 0, 0, 0));

        let (inputs, targets) = batch(0, Kind::Double, Some(&group));
        let mut seen = None;
        let output = net.sharded(&model, &inputs);
        let hidden = inputs.narrow(1, 0, 1).expand([4, 7], false).copy().set_requires_grad(true);
        let again = model.forward("middle", &hidden, |x| {
            soon(|| model.bytes().gathered, length(1) as u64 * 8);
            seen = Storage::of(&net.middle.ws);
            net.middle.forward(x)
        });
        let (seen, again) = (seen.unwrap(), again.unwrap());
        // Autograd needs the weight for the gradient of the inputs; its memory is free all the same.
        soon(|| (seen.bytes(), model.bytes().gathered), (0, 0));
        assert!(values(&net.middle.ws).iter().all(|value| value.is_nan()));
        assert_eq!(net.middle.ws.size(), [7, 7]);

        model.backward(&(loss(&output, &targets) + again.sum(Kind::Double) * 0.0)).unwrap();
        soon(|| (model.bytes().gathered, model.bytes().unreduced), (0, 0));
        let bytes = model.bytes();
        assert_eq!((bytes.parameters, bytes.gradients), (own, own));
        assert!(bytes.most_whole >= 2 * length(1) as u64 * 8, "both of the largest unit: {}", bytes.most_whole);
    });
}

/// Of the sums of two steps' gradients, and the bytes that were sent.
#[test]
fn no_sync_adds_gradients_up_without_a_reduce_scatter() {
    let whole = {
        let (vs, net) = Net::new(Kind::Double);
        for step in 0..2 {
            let (inputs, targets) = batch(step, Kind::Double, None);
            loss(&net.forward(&inputs), &targets).backward();
        }
        Trained::of(Vec::new(), &vs).grads
    };
    for world in [2, 3] {
        let found = ranks(world, |group| {
            let (_vs, net, model) = sharded(&group, Kind::Double, &FullyShardOptions::default());
            let pass = |step| {
                let (inputs, targets) = batch(step, Kind::Double, Some(&group));
                let before = group.traffic().unwrap();
                model.backward(&loss(&net.sharded(&model, &inputs), &targets)).unwrap();
                (group.traffic().unwrap() - before).calls
            };
            let calls = [model.no_sync(|| pass(0)), pass(1)];
            soon(|| model.bytes().unreduced, 0);
            let grads = model.named_parameters().iter().map(|(_, part)| part.grad()).collect();
            (calls, joined(&group, &model, grads))
        });
        for (calls, grads) in found {
            assert_eq!(calls[1] - calls[0], 3, "one reduce-scatter a unit");
            let all = |grads: &BTreeMap<String, Vec<f64>>| grads.values().flatten().copied().collect::<Vec<_>>();
            let distance = all(&grads).iter().zip(all(&whole)).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            margin::below(format!("{world} ranks: distance of the summed gradients"), distance, 1e-10);
        }
    }
}

/// bfloat16 has 8 bits of mantissa, so a value is off by at most 2^-9 of itself; sums of a few such products by some of those.
#[test]
fn mixed_precision_stays_near_and_keeps_its_own_parts_in_full() {
    let options = SgdOptions { lr: 0.05, ..Default::default() };
    let whole = train_whole(&options, Kind::Float);
    for (param, reduce) in
        [(Kind::BFloat16, Some(Kind::Float)), (Kind::BFloat16, None), (Kind::Half, Some(Kind::Float))]
    {
        let mixed_precision = MixedPrecision { param: Some(param), reduce };
        let shard = FullyShardOptions { mixed_precision, ..Default::default() };
        let trained = ranks(2, |group| {
            let (_vs, net, model) = sharded(&group, Kind::Float, &shard);
            let (inputs, _) = batch(0, Kind::Float, Some(&group));
            assert_eq!(net.sharded(&model, &inputs).kind(), param);
            assert!(model.named_parameters().iter().all(|(_, part)| part.kind() == Kind::Float));
            train_sharded(group, &options, Kind::Float, &shard)
        });
        let distance = Trained::distance(&trained, &whole);
        assert!(distance > 1e-5, "it was not computed in {param:?}");
        margin::below(format!("{param:?}, reduced in {reduce:?}: distance from float32"), distance, 0.1);
    }
}

#[test]
fn a_parameter_without_a_gradient_is_not_stepped() {
    ranks(2, |group| {
        let (vs, net, model) = sharded(&group, Kind::Double, &FullyShardOptions::default());
        let mut optimizer = FusedOptimizer::new(model.named_parameters(), adam_w()).unwrap();
        let before = model.summon_full_params(|| Trained::of(Vec::new(), &vs).params).unwrap();
        let (inputs, _) = batch(0, Kind::Double, Some(&group));
        let output = model.forward("first", &inputs, |x| x.matmul(&net.first.ws.tr())).unwrap();
        model.backward(&output.sum(Kind::Double)).unwrap();
        optimizer.step().unwrap();
        let after = model.summon_full_params(|| Trained::of(Vec::new(), &vs).params).unwrap();
        let changed: Vec<_> =
            before.iter().filter(|(name, values)| after[*name] != **values).map(|(name, _)| name).collect();
        assert_eq!(changed, ["first.weight"]);
    });
}

#[test]
fn a_unit_inside_a_unit_does_what_one_rank_does() {
    let (vs, net) = Net::new(Kind::Double);
    let (inputs, targets) = batch(0, Kind::Double, None);
    loss(&net.forward(&inputs), &targets).backward();
    let whole = Trained::of(Vec::new(), &vs).grads;
    let found = ranks(2, |group| {
        let (vs, net) = Net::new(Kind::Double);
        let model = FullyShard::new(&vs, Rc::clone(&group), &["", "middle"], &FullyShardOptions::default()).unwrap();
        let (inputs, targets) = batch(0, Kind::Double, Some(&group));
        let [first, middle, last] = net.units();
        let output = model.forward("", &inputs, |x| {
            let twice = |x: &Tensor| middle(&middle(x));
            last(&model.forward("middle", &first(x), twice).unwrap())
        });
        model.backward(&loss(&output.unwrap(), &targets)).unwrap();
        let grads = model.named_parameters().iter().map(|(_, part)| part.grad()).collect();
        joined(&group, &model, grads)
    });
    for grads in found {
        for (name, grad) in &whole {
            let distance = grad.iter().zip(&grads[name]).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            margin::below(format!("{name}: distance of the gradient"), distance, 1e-10);
        }
    }
}

#[test]
fn evaluation_frees_what_it_gathers_and_records_nothing() {
    ranks(2, |group| {
        let (_vs, net, model) =
            sharded(&group, Kind::Double, &FullyShardOptions { reshard_after_forward: false, ..Default::default() });
        let (inputs, _) = batch(0, Kind::Double, None);
        let whole = Net::new(Kind::Double).1.forward(&inputs);
        let output = no_grad(|| net.sharded(&model, &inputs));
        assert!(output.allclose(&whole, 1e-12, 1e-12, false) && !output.requires_grad());
        soon(|| model.bytes().gathered, 0);
        let output = model.summon_full_params(|| net.forward(&inputs)).unwrap();
        assert!(output.allclose(&whole, 1e-12, 1e-12, false));
        soon(|| model.bytes().gathered, 0);
        assert!(
            net.forward(&inputs).isnan().any().int64_value(&[]) == 1,
            "outside a unit's forward its parameters are NaN"
        );
    });
}

#[test]
fn parameters_that_stay_after_a_forward_pass_are_freed_on_demand() {
    ranks(2, |group| {
        let options = FullyShardOptions { reshard_after_forward: false, ..Default::default() };
        let (_vs, net, model) = sharded(&group, Kind::Double, &options);
        let mut optimizer = FusedOptimizer::new(model.named_parameters(), sgd()).unwrap();
        let (inputs, _) = batch(0, Kind::Double, Some(&group));
        let before = net.sharded(&model, &inputs);
        assert!(model.bytes().gathered > 0 && net.sharded(&model, &inputs).equal(&before));
        for (_, mut part) in model.named_parameters() {
            let grad = part.ones_like();
            c10d::add_grad(&mut part, &grad).unwrap();
        }
        model.reshard().unwrap();
        optimizer.step().unwrap();
        assert!(!net.sharded(&model, &inputs).equal(&before));
    });
}

#[test]
fn wrong_units_are_refused_by_name() {
    ranks(1, |group| {
        let refusal = |units: &[&str]| {
            let (vs, _net) = Net::new(Kind::Double);
            FullyShard::new(&vs, Rc::clone(&group), units, &FullyShardOptions::default()).unwrap_err().to_string()
        };
        let text = refusal(&["first", "last"]);
        assert!(text.contains("middle.") && text.contains("is not in any unit"), "{text}");
        assert!(refusal(&["", "tail"]).contains("the unit \"tail\" has no parameters"));
        let (_vs, _net, model) = sharded(&group, Kind::Double, &FullyShardOptions::default());
        let text = model.forward("tail", &Tensor::from(0.0), Tensor::shallow_clone).unwrap_err().to_string();
        assert!(text.contains("there is no unit \"tail\"; there are \"first\", \"middle\", \"last\""), "{text}");
    });
}

/// Needs a Python with PyTorch 2.11; prints "not verified here" without one.
#[test]
fn procs_has_the_losses_of_pytorchs_own_fsdp2() {
    let Some(job) = Job::in_python("losses equal to those of PyTorch's FSDP2") else { return };
    let (world, script) = (3, concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/fsdp2.py"));
    let output = job.alone(&[script, &world.to_string(), &STEPS.to_string()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let python: Vec<Vec<f64>> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(python.iter().flatten().count(), world * STEPS as usize);
    let own = ranks(world, |group| train_sharded(group, &adam_w(), Kind::Double, &FullyShardOptions::default()).losses);
    let pairs = own.iter().flatten().zip(python.iter().flatten());
    let distance = pairs.map(|(own, python)| (own - python).abs()).fold(0.0, f64::max);
    margin::below("distance of the losses from FSDP2's", distance, 1e-5);
}
