//! Batch normalization over several ranks: synchronized, when N ranks must compute the same as one rank on the whole batch; and
//! per rank under DDP, when running statistics must follow rank 0's, as Python's do.

use std::rc::Rc;

use c10d::{ErrorKind, ProcessGroup, ReduceOp};
use lockstep::models::{Depth, Norm, ResNet, ResNetOptions};
use lockstep::nn::SyncBatchNorm2d;
use lockstep::optim::{Optimizer, Sgd, SgdOptions, named_parameters};
use lockstep::{DdpOptions, DistributedDataParallel};
use lockstep_testkit::margin;
use tch::nn::{BatchNormConfig, ConvConfig, ModuleT, VarStore};
use tch::{Device, Kind, Tensor, nn, no_grad};

use crate::common::{formula_tensor, ranks, values};

const CHANNELS: i64 = 3;

/// The results of one normalization: all samples' outputs and input gradients, gradients of weight and bias, running
/// statistics.
struct Outcome {
    output: Vec<f64>,
    input_grad: Vec<f64>,
    weight_grad: Vec<f64>,
    bias_grad: Vec<f64>,
    running: Vec<f64>,
}

/// The whole batch: channels of different mean and spread, one of them far from zero.
fn samples(n: i64) -> Tensor {
    let spread = Tensor::from_slice(&[1f32, 0.1, 5.0]).reshape([1, CHANNELS, 1, 1]);
    let mean = Tensor::from_slice(&[0f32, 3.0, -20.0]).reshape([1, CHANNELS, 1, 1]);
    formula_tensor(&[n, CHANNELS, 4, 5], 1, 1.0) * spread + mean
}

/// Sets the parameters of a normalization, and runs three training passes over `inputs`, the last one with backward.
fn passes(vs: &VarStore, norm: &impl ModuleT, inputs: &Tensor, factors: &Tensor) -> Outcome {
    let variables = vs.variables();
    no_grad(|| {
        variables["weight"].shallow_clone().copy_(&formula_tensor(&[CHANNELS], 5, 2.0));
        variables["bias"].shallow_clone().copy_(&formula_tensor(&[CHANNELS], 6, 2.0));
        for factor in [0.5, 2.0] {
            let _output = norm.forward_t(&(inputs * factor), true);
        }
    });
    let inputs = inputs.detach().set_requires_grad(true);
    let output = norm.forward_t(&inputs, true);
    c10d::backward(&(output.sigmoid() * factors).sum(Kind::Float)).unwrap();
    let [mean, var] = ["running_mean", "running_var"].map(|name| values(&variables[name]));
    Outcome {
        output: values(&output),
        input_grad: values(&inputs.grad()),
        weight_grad: values(&variables["weight"].grad()),
        bias_grad: values(&variables["bias"].grad()),
        running: [mean, var].concat(),
    }
}

fn on_one_rank(inputs: &Tensor, factors: &Tensor) -> Outcome {
    let vs = VarStore::new(Device::Cpu);
    let norm = nn::batch_norm2d(vs.root(), CHANNELS, BatchNormConfig::default());
    passes(&vs, &norm, inputs, factors)
}

/// Each rank gets the number of samples that `split` gives, in order.
fn on_many_ranks(split: &[i64], inputs: &Tensor, factors: &Tensor) -> Vec<Outcome> {
    let (inputs, factors) = (values(inputs), values(factors));
    let n: i64 = split.iter().sum();
    ranks(split.len(), |group| {
        let me = group.rank().get();
        let (start, count) = (split[..me].iter().sum(), split[me]);
        let [inputs, factors] = [&inputs, &factors].map(|all| {
            let all = Tensor::from_slice(all).to_kind(Kind::Float).reshape([n, CHANNELS, 4, 5]);
            all.narrow(0, start, count)
        });
        let vs = VarStore::new(Device::Cpu);
        let norm = SyncBatchNorm2d::new(&vs.root(), CHANNELS, group, &Default::default());
        passes(&vs, &norm, &inputs, &factors)
    })
}

#[track_caller]
fn assert_close(what: &str, ours: &[f64], theirs: &[f64], tolerance: f64) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    let largest = theirs.iter().fold(1e-3, |max: f64, value| max.max(value.abs()));
    let worst = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max) / largest;
    margin::below(what, worst, tolerance);
}

#[test]
fn synchronized_ranks_compute_what_one_rank_does_on_the_whole_batch() {
    let (inputs, factors) = (samples(12), formula_tensor(&[12, CHANNELS, 4, 5], 2, 1.0));
    let whole = on_one_rank(&inputs, &factors);
    for split in [&[6, 6][..], &[1, 11], &[5, 0, 7], &[3, 4, 5], &[12]] {
        let parts = on_many_ranks(split, &inputs, &factors);
        let joined = |part: fn(&Outcome) -> &Vec<f64>| parts.iter().flat_map(part).copied().collect::<Vec<f64>>();
        let summed = |part: fn(&Outcome) -> &Vec<f64>| -> Vec<f64> {
            (0..CHANNELS as usize).map(|i| parts.iter().map(|p| part(p)[i]).sum()).collect()
        };
        println!("{split:?}");
        assert_close("outputs", &joined(|p| &p.output), &whole.output, 3e-6);
        assert_close("gradients of inputs", &joined(|p| &p.input_grad), &whole.input_grad, 1e-5);
        assert_close("gradients of weights", &summed(|p| &p.weight_grad), &whole.weight_grad, 1e-5);
        assert_close("gradients of biases", &summed(|p| &p.bias_grad), &whole.bias_grad, 1e-5);
        for part in &parts {
            assert_close("running statistics", &part.running, &whole.running, 1e-6);
        }
    }
}

#[test]
fn the_synchronized_gradient_is_that_of_finite_differences() {
    // In double precision, over two ranks: the other rank's outputs depend on this rank's inputs.
    ranks(2, |group| {
        let kind = Kind::Double;
        let mine = formula_tensor(&[2, CHANNELS, 2, 2], 3 + group.rank().get() as i64, 1.0).to_kind(kind);
        let factors = formula_tensor(&[2, CHANNELS, 2, 2], 7 + group.rank().get() as i64, 1.0).to_kind(kind);
        let weight = formula_tensor(&[CHANNELS], 5, 1.0).to_kind(kind);
        let loss = |inputs: &Tensor| {
            let bias = weight.zeros_like();
            let output = c10d::sync_batch_norm(&group, inputs, &weight, &bias, 1e-5).unwrap().output;
            (output.sin() * &factors).sum(kind)
        };
        let inputs = mine.copy().set_requires_grad(true);
        c10d::backward(&loss(&inputs)).unwrap();
        let step = 1e-6;
        for (rank, index) in [(0, [0, 0, 0, 0]), (0, [1, 2, 1, 0]), (1, [1, 1, 0, 1]), (1, [0, 2, 0, 0])] {
            let shifted = |by: f64| {
                let inputs = mine.copy();
                if group.rank().get() == rank {
                    let mut element = index.iter().fold(inputs.shallow_clone(), |t, &i| t.get(i));
                    element += by;
                }
                let mut sum = no_grad(|| loss(&inputs));
                group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
                sum.double_value(&[])
            };
            let numeric = (shifted(step) - shifted(-step)) / (2.0 * step);
            if group.rank().get() == rank {
                let ours = inputs.grad().double_value(&index);
                assert!((ours - numeric).abs() < 1e-7, "rank {rank}, {index:?}: {ours} against {numeric}");
            }
        }
    });
}

#[test]
fn evaluation_does_not_communicate_and_uses_the_running_statistics() {
    ranks(2, |group| {
        let vs = VarStore::new(Device::Cpu);
        let norm = SyncBatchNorm2d::new(&vs.root(), CHANNELS, Rc::clone(&group), &Default::default());
        let inputs = samples(4) + group.rank().get() as f64;
        let _trained = norm.forward_t(&inputs, true);
        // Only one rank: a call that waited for the other would time out.
        if group.rank().get() == 1 {
            let variables = vs.variables();
            let (mean, var) = (&variables["running_mean"], &variables["running_var"]);
            let shape = [1, CHANNELS, 1, 1];
            let expected = (&inputs - mean.reshape(shape)) / (var.reshape(shape) + 1e-5).sqrt();
            assert_close("outputs", &values(&norm.forward_t(&inputs, false)), &values(&expected), 1e-6);
        }
    });
}

#[test]
fn refuses_one_value_per_channel_on_all_ranks() {
    ranks(2, |group| {
        let rows = if group.rank().is_zero() { 1 } else { 0 };
        let (inputs, ones) =
            (Tensor::ones([rows, CHANNELS], (Kind::Float, Device::Cpu)), Tensor::ones([3], (Kind::Float, Device::Cpu)));
        let error = c10d::sync_batch_norm(&group, &inputs, &ones, &ones, 1e-5).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadArgument, "{error}");
        assert!(error.to_string().contains("more than 1 value per channel"), "{error}");
        let error = c10d::sync_batch_norm(&group, &ones, &ones, &ones, 1e-5).unwrap_err();
        assert!(error.to_string().contains("expected inputs of shape [n, 3"), "{error}");
    });
}

/// The result of a training run: every variable, by name, and the last loss.
type Trained = (Vec<(String, Vec<f64>)>, f64);

/// Five steps of a narrow ResNet-18 in double precision on this rank's share of each step's batch, under DDP.
fn train_resnet(group: &Rc<ProcessGroup>, norm: Norm, split: &[i64]) -> Trained {
    // The ranks are threads: libtorch threads of all of them would wait for each other.
    tch::set_num_threads(1);
    let n: i64 = split.iter().sum();
    let me = group.rank().get();
    let (start, count) = (split[..me].iter().sum::<i64>(), split[me]);
    let mut vs = VarStore::new(Device::Cpu);
    let net = ResNet::new(&vs.root(), Depth::Eighteen, &ResNetOptions { width: 4, norm, ..ResNetOptions::new(3) });
    vs.double();
    set_by_formula(&vs);
    let options = SgdOptions { lr: 0.02, momentum: 0.9, weight_decay: 1e-5, ..SgdOptions::default() };
    let mut optimizer = Sgd::new(named_parameters(&vs), options).unwrap();
    let ddp = DistributedDataParallel::new(net, &vs, Rc::clone(group), &DdpOptions::default()).unwrap();
    let mut last = 0.0;
    for step in 0..5 {
        let inputs = formula_tensor(&[n, 3, 32, 32], 20 + step, 1.0).to_kind(Kind::Double).narrow(0, start, count);
        let targets = (Tensor::arange(n, (Kind::Int64, Device::Cpu)) * 7 + step).remainder(3).narrow(0, start, count);
        optimizer.zero_grad();
        let logits = ddp.forward(&inputs).unwrap();
        // DDP averages over ranks: a rank's sum times the world size over n makes it the whole batch's mean.
        let loss = (logits.log_softmax(-1, Kind::Double) * targets.one_hot(3)).sum(Kind::Double) * (-1.0 / n as f64);
        ddp.backward(&(&loss * group.size().get() as f64)).unwrap();
        optimizer.step().unwrap();
        let mut sum = loss.detach();
        group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
        last = sum.double_value(&[]);
    }
    let mut variables: Vec<_> = vs.variables().into_iter().map(|(name, tensor)| (name, values(&tensor))).collect();
    variables.sort_by(|(a, _), (b, _)| a.cmp(b));
    (variables, last)
}

/// Replaces the random initial values, so that every rank and run starts from the same ones.
fn set_by_formula(vs: &VarStore) {
    for (salt, (_, mut parameter)) in named_parameters(vs).into_iter().enumerate() {
        let size = parameter.size();
        let scale = if size.len() > 1 { (3.0 / size[1..].iter().product::<i64>() as f64).sqrt() } else { 0.1 };
        let ones = if size.len() == 1 { 1.0 } else { 0.0 };
        let values = formula_tensor(&size, salt as i64 + 1, scale) + ones;
        no_grad(|| parameter.copy_(&values));
    }
}

#[test]
fn ddp_with_synchronized_batch_norm_trains_as_one_rank_on_the_whole_batch() {
    let alone = ranks(1, |group| train_resnet(&group, Norm::Batch, &[12])).remove(0);
    for split in [&[6, 6][..], &[3, 9, 0]] {
        let together = ranks(split.len(), |group| train_resnet(&group, Norm::Sync(Rc::clone(&group)), split));
        for (variables, loss) in together {
            margin::below("last loss", (loss - alone.1).abs(), 1e-9);
            for ((name, ours), (alike, theirs)) in variables.iter().zip(&alone.0) {
                assert_eq!(name, alike);
                assert_close("weights and statistics", ours, theirs, 1e-8);
            }
        }
    }
}

#[test]
fn without_synchronization_ranks_do_not_train_as_one_rank() {
    // Otherwise the test above would prove nothing.
    let alone = ranks(1, |group| train_resnet(&group, Norm::Batch, &[12])).remove(0);
    let together = ranks(2, |group| train_resnet(&group, Norm::Batch, &[6, 6])).remove(0);
    margin::above("distance of the last losses", (together.1 - alone.1).abs(), 1e-4);
}

/// Rank 0's error from a step in which rank 1 takes no part, or only in the forward pass.
fn error_without_peer(peer_comes_to_forward: bool) -> String {
    let errors = ranks(2, |group| {
        let vs = VarStore::new(Device::Cpu);
        let norm = SyncBatchNorm2d::new(&vs.root(), CHANNELS, Rc::clone(&group), &Default::default());
        let options = DdpOptions { broadcast_buffers: false, ..DdpOptions::default() };
        let ddp = DistributedDataParallel::new(norm, &vs, Rc::clone(&group), &options).unwrap();
        if !group.rank().is_zero() && !peer_comes_to_forward {
            return None;
        }
        let output = ddp.forward(&samples(4).set_requires_grad(true));
        let result = output
            .and_then(|output| if group.rank().is_zero() { ddp.backward(&output.sum(Kind::Float)) } else { Ok(()) });
        result.err().map(|error| error.to_string())
    });
    errors[0].clone().unwrap()
}

#[test]
fn a_peer_that_is_missing_is_an_error_of_the_pass_that_needs_it() {
    let error = error_without_peer(false);
    assert!(error.contains("sync_batch_norm of 3 channels") && error.contains("rank 1"), "{error}");
    let error = error_without_peer(true);
    assert!(error.contains("backward") && error.contains("rank 1"), "{error}");
}

const GOLDEN_CHANNELS: i64 = 4;
const CLASSES: i64 = 3;

#[derive(serde::Deserialize)]
struct Golden {
    torch: String,
    default: Run,
    own: Run,
}

/// Each rank's losses and running statistics, and rank 1's outputs in evaluation mode.
#[derive(serde::Deserialize)]
struct Run {
    losses: Vec<Vec<f64>>,
    running: Vec<Vec<f64>>,
    evaluated: Vec<f64>,
}

/// A rank's final values: losses, running statistics, outputs in evaluation mode, and running statistics after DDP has
/// broadcast rank 0's.
type Mine = (Vec<f64>, Vec<f64>, Vec<f64>, Vec<f64>);

/// `make_model` of the script: parameter k of Python's order has salt k + 1.
fn model(vs: &VarStore) -> nn::SequentialT {
    let root = vs.root();
    let same = ConvConfig { padding: 1, bias: false, ..Default::default() };
    let net = nn::seq_t()
        .add(nn::conv2d(&root / 0, 2, GOLDEN_CHANNELS, 3, same))
        .add(nn::batch_norm2d(&root / 1, GOLDEN_CHANNELS, BatchNormConfig::default()))
        .add_fn(|x| x.tanh().flatten(1, -1))
        .add(nn::linear(&root / 4, GOLDEN_CHANNELS * 16, CLASSES, Default::default()));
    let variables = vs.variables();
    for (salt, name) in ["0.weight", "1.weight", "1.bias", "4.weight", "4.bias"].iter().enumerate() {
        let mut variable = variables[*name].shallow_clone();
        no_grad(|| variable.copy_(&formula_tensor(&variable.size(), salt as i64 + 1, 0.25)));
    }
    net
}

fn batch(rank: i64, step: i64) -> (Tensor, Tensor) {
    let n = 3 + 2 * rank;
    let targets: Vec<i64> = (0..n).map(|i| (i * i + step) % CLASSES).collect();
    (formula_tensor(&[n, 2, 4, 4], 10 + 2 * step + rank, 1.0 + rank as f64), Tensor::from_slice(&targets))
}

fn running(vs: &VarStore) -> Vec<f64> {
    ["1.running_mean", "1.running_var"].iter().flat_map(|name| values(&vs.variables()[*name])).collect()
}

fn train(group: Rc<ProcessGroup>, options: &DdpOptions) -> Mine {
    let rank = group.rank().get() as i64;
    let vs = VarStore::new(Device::Cpu);
    let net = model(&vs);
    let options_sgd = SgdOptions { lr: 0.1, momentum: 0.9, ..SgdOptions::default() };
    let mut optimizer = Sgd::new(named_parameters(&vs), options_sgd).unwrap();
    let ddp = DistributedDataParallel::new(net, &vs, group, options).unwrap();
    let mut losses = Vec::new();
    for step in 0..4 {
        let (inputs, targets) = batch(rank, step);
        optimizer.zero_grad();
        let loss = ddp.forward(&inputs).unwrap().cross_entropy_for_logits(&targets);
        ddp.backward(&loss).unwrap();
        optimizer.step().unwrap();
        losses.push(loss.double_value(&[]));
    }
    let diverged = running(&vs);
    let evaluated = no_grad(|| values(&ddp.module().forward_t(&batch(0, 0).0, false)));
    ddp.sync_buffers().unwrap();
    (losses, diverged, evaluated, running(&vs))
}

#[track_caller]
fn assert_golden(what: &str, ours: &[f64], theirs: &[f64]) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    let worst = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs() / b.abs().max(0.1)).fold(0.0, f64::max);
    margin::below(what, worst, 2e-6);
}

#[test]
fn golden_losses_and_statistics_are_pythons_on_each_rank() {
    let golden: Golden = serde_json::from_str(include_str!("../../golden/batch_norm.json")).unwrap();
    assert_eq!(golden.torch, "2.11.0");
    let own = DdpOptions { broadcast_buffers: false, ..DdpOptions::default() };
    for (name, options, theirs) in [("default", DdpOptions::default(), golden.default), ("own", own, golden.own)] {
        let ours = ranks(2, |group| train(group, &options));
        for (rank, (losses, diverged, ..)) in ours.iter().enumerate() {
            assert_golden(&format!("{name}: losses of rank {rank}"), losses, &theirs.losses[rank]);
            assert_golden(&format!("{name}: statistics of rank {rank}"), diverged, &theirs.running[rank]);
        }
        assert_golden(&format!("{name}: rank 1 in evaluation mode"), &ours[1].2, &theirs.evaluated);
        assert_ne!(ours[0].1, ours[1].1, "{name}: the last pass left each rank statistics of its own batch");
        assert_eq!(ours[0].3, ours[1].3, "{name}: sync_buffers makes them equal");
        assert_eq!(ours[0].3, ours[0].1, "{name}: they are rank 0's");
    }
}
