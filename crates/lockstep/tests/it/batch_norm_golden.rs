//! Batch normalization under DDP against Python's: which rank's running statistics a rank has, and when.

use std::rc::Rc;

use crate::common::{formula_tensor, ranks, values};
use c10d::ProcessGroup;
use lockstep::optim::{Optimizer, Sgd, SgdOptions, named_parameters};
use lockstep::{DdpOptions, DistributedDataParallel};
use lockstep_testkit::margin;
use tch::nn::{self, BatchNormConfig, ConvConfig, ModuleT, VarStore};
use tch::{Device, Tensor, no_grad};

const CHANNELS: i64 = 4;
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
        .add(nn::conv2d(&root / 0, 2, CHANNELS, 3, same))
        .add(nn::batch_norm2d(&root / 1, CHANNELS, BatchNormConfig::default()))
        .add_fn(|x| x.tanh().flatten(1, -1))
        .add(nn::linear(&root / 4, CHANNELS * 16, CLASSES, Default::default()));
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
fn assert_close(what: &str, ours: &[f64], theirs: &[f64]) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    let worst = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs() / b.abs().max(0.1)).fold(0.0, f64::max);
    margin::below(what, worst, 2e-6);
}

#[test]
fn losses_and_statistics_are_pythons_on_each_rank() {
    let golden: Golden = serde_json::from_str(include_str!("../../golden/batch_norm.json")).unwrap();
    assert_eq!(golden.torch, "2.11.0");
    let own = DdpOptions { broadcast_buffers: false, ..DdpOptions::default() };
    for (name, options, theirs) in [("default", DdpOptions::default(), golden.default), ("own", own, golden.own)] {
        let ours = ranks(2, |group| train(group, &options));
        for (rank, (losses, diverged, ..)) in ours.iter().enumerate() {
            assert_close(&format!("{name}: losses of rank {rank}"), losses, &theirs.losses[rank]);
            assert_close(&format!("{name}: statistics of rank {rank}"), diverged, &theirs.running[rank]);
        }
        assert_close(&format!("{name}: rank 1 in evaluation mode"), &ours[1].2, &theirs.evaluated);
        assert_ne!(ours[0].1, ours[1].1, "{name}: the last pass left each rank statistics of its own batch");
        assert_eq!(ours[0].3, ours[1].3, "{name}: sync_buffers makes them equal");
        assert_eq!(ours[0].3, ours[0].1, "{name}: they are rank 0's");
    }
}
