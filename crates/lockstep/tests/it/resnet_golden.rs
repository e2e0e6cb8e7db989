//! ResNet-18 and ResNet-34 at full width against torchvision's: names, logits, and the losses of five training steps. Weights
//! and pictures come from the same formulas on both sides, see golden/resnet.py.
//!
//! Weights that Python's torchvision initialized are read from its file: the logits must be equal.

use std::collections::BTreeMap;
use std::process::Command;

use lockstep::data::rng::KeyedRng;
use lockstep::models::{Depth, Head, ResNet, ResNetOptions};
use lockstep::optim::{Optimizer, Sgd, SgdOptions, named_parameters};
use lockstep_testkit::margin;
use lockstep_testkit::python::python_with;
use tch::nn::{ModuleT, VarStore};
use tch::{Device, Kind, Tensor, no_grad};

#[derive(serde::Deserialize)]
struct Golden {
    torch: String,
    torchvision: String,
    seed: u64,
    pictures: u64,
    lr: f64,
    networks: BTreeMap<String, Network>,
}

#[derive(serde::Deserialize)]
struct Network {
    classes: i64,
    two_layers: bool,
    parameters: Vec<String>,
    sizes: Vec<usize>,
    buffers: Vec<String>,
    evaluations: Vec<(i64, i64)>,
    logits: Vec<Vec<f64>>,
    training: (i64, i64),
    losses: Vec<f64>,
    running: [f64; 2],
}

fn golden() -> Golden {
    // Tests run in parallel; threads of all of them would wait for each other.
    tch::set_num_threads(1);
    let golden: Golden = serde_json::from_str(include_str!("../../golden/resnet.json")).unwrap();
    assert_eq!((golden.torch.as_str(), golden.torchvision.as_str()), ("2.11.0", "0.26.0"));
    golden
}

/// `scaled` of the script.
fn scaled(name: &str, shape: &[i64], rng: &mut KeyedRng) -> Tensor {
    let bound = match *shape {
        [to, _, height, width] => (6.0 / (to * height * width) as f64).sqrt() as f32,
        [_, inputs] => (1.0 / (inputs as f64).sqrt()) as f32,
        _ => 1.0,
    };
    let value = |u: f32| match name.rsplit('.').next() {
        Some("running_var") => u + 0.5,
        Some("running_mean" | "bias") => (u - 0.5) * 0.25,
        _ if shape.len() == 1 => u * 0.5 + 0.75,
        _ => (u * 2.0 - 1.0) * bound,
    };
    let values: Vec<f32> = (0..shape.iter().product()).map(|_| value(rng.uniform())).collect();
    Tensor::from_slice(&values).reshape(shape)
}

/// The network of one record, with random weights.
fn build(golden: &Golden, name: &str) -> (VarStore, ResNet) {
    let network = &golden.networks[name];
    let depth = if name == "resnet18" { Depth::Eighteen } else { Depth::ThirtyFour };
    let head = if network.two_layers { Head::TwoLayers } else { Head::Linear };
    let vs = VarStore::new(Device::Cpu);
    let net = ResNet::new(&vs.root(), depth, &ResNetOptions { head, ..ResNetOptions::new(network.classes) });
    (vs, net)
}

/// The same with the weights of the script, which follow torchvision's order of the state dict.
fn build_as_drawn(golden: &Golden, name: &str) -> (VarStore, ResNet) {
    let (vs, net) = build(golden, name);
    let variables = vs.variables();
    for (number, key) in state_keys(&golden.networks[name]).iter().enumerate() {
        let mut variable = variables[*key].shallow_clone();
        let mut rng = KeyedRng::new(&[golden.seed, number as u64]);
        no_grad(|| variable.copy_(&scaled(key, &variable.size(), &mut rng)));
    }
    (vs, net)
}

/// The keys of torchvision's state dict: a normalization's running statistics follow its bias.
fn state_keys(network: &Network) -> Vec<&str> {
    let mut keys = Vec::new();
    for name in &network.parameters {
        keys.push(name.as_str());
        let Some(module) = name.strip_suffix("bias") else { continue };
        keys.extend(network.buffers.iter().filter(|buffer| buffer.strip_prefix(module).is_some()).map(String::as_str));
    }
    keys
}

fn pictures(golden: &Golden, run: usize, (batch, side): (i64, i64), classes: i64) -> (Tensor, Tensor) {
    let mut rng = KeyedRng::new(&[golden.seed, golden.pictures + run as u64]);
    let values: Vec<f32> = (0..batch * 3 * side * side).map(|_| rng.uniform() * 2.0 - 1.0).collect();
    let targets: Vec<i64> = (0..batch).map(|_| (rng.uniform() * classes as f32) as i64).collect();
    (Tensor::from_slice(&values).reshape([batch, 3, side, side]), Tensor::from_slice(&targets))
}

fn largest_difference(ours: &[f64], theirs: &[f64]) -> f64 {
    assert_eq!(ours.len(), theirs.len());
    ours.iter().zip(theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

#[test]
fn parameters_have_torchvisions_names_order_and_sizes() {
    let golden = golden();
    for (name, network) in &golden.networks {
        let (vs, _net) = build(&golden, name);
        let parameters = named_parameters(&vs);
        let names: Vec<&String> = parameters.iter().map(|(name, _)| name).collect();
        let sizes: Vec<usize> = parameters.iter().map(|(_, tensor)| tensor.numel()).collect();
        assert_eq!(names, network.parameters.iter().collect::<Vec<_>>());
        assert_eq!(sizes, network.sizes);
        let mut all: Vec<String> = vs.variables().into_keys().collect();
        let mut theirs = [network.parameters.clone(), network.buffers.clone()].concat();
        all.sort();
        theirs.sort();
        assert_eq!(all, theirs);
    }
}

#[test]
fn logits_in_evaluation_are_torchvisions_within_1e_5() {
    let golden = golden();
    for (name, network) in &golden.networks {
        let (_vs, net) = build_as_drawn(&golden, name);
        for (run, (&shape, theirs)) in network.evaluations.iter().zip(&network.logits).enumerate() {
            let (inputs, _) = pictures(&golden, run, shape, network.classes);
            let logits = no_grad(|| net.forward_t(&inputs, false));
            assert_eq!(logits.size(), [shape.0, network.classes]);
            let ours: Vec<f64> = Vec::try_from(logits.to_kind(Kind::Double).flatten(0, -1)).unwrap();
            let worst = largest_difference(&ours, theirs);
            margin::below(format!("{name}, {shape:?}: logits from torchvision's"), worst, 1e-5);
        }
    }
}

#[test]
fn five_training_steps_have_torchvisions_losses_within_1e_8() {
    let golden = golden();
    for (name, network) in &golden.networks {
        let (mut vs, net) = build_as_drawn(&golden, name);
        // The script explains why.
        vs.double();
        let (inputs, targets) = pictures(&golden, network.evaluations.len(), network.training, network.classes);
        let inputs = inputs.to_kind(Kind::Double);
        let options = SgdOptions { lr: golden.lr, momentum: 0.9, weight_decay: 1e-5, ..SgdOptions::default() };
        let mut optimizer = Sgd::new(named_parameters(&vs), options).unwrap();
        let mut losses = Vec::new();
        for _ in 0..network.losses.len() {
            optimizer.zero_grad();
            // tch's cross_entropy_for_logits computes in single precision.
            let loss = net.forward_t(&inputs, true).log_softmax(-1, Kind::Double).nll_loss(&targets);
            c10d::backward(&loss).unwrap();
            optimizer.step().unwrap();
            losses.push(loss.double_value(&[]));
        }
        let worst = largest_difference(&losses, &network.losses);
        margin::below(format!("{name}: losses from torchvision's"), worst, 1e-8);
        for (which, theirs) in ["running_mean", "running_var"].iter().zip(network.running) {
            let buffers = vs.variables().into_iter().filter(|(name, _)| name.ends_with(which));
            let sum: f64 = buffers.map(|(_, buffer)| buffer.sum(Kind::Double).double_value(&[])).sum();
            let apart = (sum - theirs).abs() / theirs.abs().max(1.0);
            margin::below(format!("{name}: sum of {which} from torchvision's"), apart, 1e-6);
        }
    }
}

/// Writes the weights, a batch and its logits as safetensors: a JSON header with its length in front, and the tensors' bytes.
const EXPORT: &str = r#"
import json, struct, sys, torch, torchvision
for name in ("resnet18", "resnet34"):
    torch.set_num_threads(1)
    torch.manual_seed(7)
    model = getattr(torchvision.models, name)(weights=None).eval()
    inputs = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        outputs = {"inputs": inputs, "logits": model(inputs)}
    for path, tensors in ((name, model.state_dict()), (name + "_io", outputs)):
        header, data = {}, b""
        for key, tensor in tensors.items():
            raw = tensor.numpy().tobytes()
            kind = "I64" if tensor.dtype == torch.int64 else "F32"
            header[key] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(raw)]}
            data += raw
        text = json.dumps(header).encode()
        open(f"{sys.argv[1]}/{path}.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + data)
"#;

#[test]
fn weights_from_torchvision_give_its_logits_within_1e_5() {
    // Tests run in parallel; threads of all of them would wait for each other.
    tch::set_num_threads(1);
    let Some(python) = python_with(&["torchvision"], "torchvision's own weights") else { return };
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(python).args(["-c", EXPORT]).arg(folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for (name, depth) in [("resnet18", Depth::Eighteen), ("resnet34", Depth::ThirtyFour)] {
        let mut vs = VarStore::new(Device::Cpu);
        let net = ResNet::new(&vs.root(), depth, &ResNetOptions::new(1000));
        vs.load(folder.path().join(format!("{name}.safetensors"))).unwrap();
        let io = Tensor::read_safetensors(folder.path().join(format!("{name}_io.safetensors"))).unwrap();
        let tensor = |key: &str| io.iter().find(|(name, _)| name == key).unwrap().1.shallow_clone();
        let logits = no_grad(|| net.forward_t(&tensor("inputs"), false));
        let worst = (logits - tensor("logits")).abs().max().double_value(&[]);
        println!("{name}: logits at most {worst:e} apart");
        assert!(worst <= 1e-5, "{name}");
    }
}
