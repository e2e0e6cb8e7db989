//! Loads weights from files written by PyTorch into a model.
//!
//! `tests/procs/hostile.rs` tests malicious and damaged files.
//!
//! The files are in `golden/pretrained`, made by `golden/pretrained.py`, which documents them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::bits;
use lockstep::models::{Depth, Head, ResNet, ResNetOptions};
use lockstep::pretrained::{self, BadFile, LoadOptions, Loaded, PretrainedError, Weights};
use lockstep_testkit::python::python_with;
use serde::Deserialize;
use tch::nn::{self, VarStore};
use tch::{Device, Kind, Tensor, no_grad};

#[derive(Debug, Deserialize, PartialEq)]
struct Expected {
    dtype: String,
    shape: Vec<i64>,
    values: Vec<f64>,
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/pretrained").join(name)
}

fn expected() -> BTreeMap<String, BTreeMap<String, Expected>> {
    serde_json::from_slice(&fs::read(golden("expected.json")).unwrap()).unwrap()
}

fn described(tensor: &Tensor) -> Expected {
    let dtype = match tensor.kind() {
        Kind::Float => "float32",
        Kind::Double => "float64",
        Kind::Half => "float16",
        Kind::BFloat16 => "bfloat16",
        Kind::Int64 => "int64",
        Kind::Int => "int32",
        Kind::Int16 => "int16",
        Kind::Int8 => "int8",
        Kind::Uint8 => "uint8",
        Kind::Bool => "bool",
        other => panic!("{other:?}"),
    };
    let values = Vec::<f64>::try_from(tensor.detach().to_kind(Kind::Double).flatten(0, -1)).unwrap();
    Expected { dtype: dtype.into(), shape: tensor.size(), values }
}

/// The network of the golden files, with every value 7 and a head for `classes`.
fn net(classes: i64) -> VarStore {
    let vs = VarStore::new(Device::Cpu);
    let root = vs.root();
    nn::conv2d(&root / "conv", 1, 2, 2, Default::default());
    nn::batch_norm2d(&root / "norm", 2, Default::default());
    nn::linear(&root / "fc", 2, classes, Default::default());
    no_grad(|| vs.variables().values_mut().for_each(|variable| drop(variable.fill_(7.0))));
    vs
}

fn values(vs: &VarStore) -> BTreeMap<String, Vec<u32>> {
    vs.variables().into_iter().map(|(name, tensor)| (name, bits(&tensor))).collect()
}

fn skipping(names: &[&str]) -> LoadOptions {
    LoadOptions { skip: names.iter().map(|name| (*name).to_owned()).collect(), ..Default::default() }
}

fn loose() -> LoadOptions {
    LoadOptions { strict: false, ..Default::default() }
}

/// Expects an error and an unchanged model.
fn refused(vs: &VarStore, path: &Path, options: &LoadOptions) -> String {
    let before = values(vs);
    let error = pretrained::load(vs, path, options).unwrap_err();
    assert_eq!(values(vs), before);
    error.to_string()
}

/// Weights of the network in a safetensors file, modified.
fn changed(folder: &Path, change: impl FnOnce(&mut BTreeMap<String, Tensor>)) -> PathBuf {
    let weights = Weights::read(&golden("zip.pth")).unwrap();
    let mut tensors: BTreeMap<String, Tensor> = weights.tensors.into_iter().collect();
    change(&mut tensors);
    let path = folder.join("changed.safetensors");
    Tensor::write_safetensors(&tensors.into_iter().collect::<Vec<_>>(), &path).unwrap();
    path
}

#[test]
fn reads_what_python_reads_from_every_file() {
    let expected = expected();
    assert!(expected.len() >= 12);
    for (name, expected) in expected {
        let read = Weights::read(&golden(&name)).unwrap();
        let here: BTreeMap<String, Expected> =
            read.tensors.iter().map(|(key, one)| (key.clone(), described(one))).collect();
        assert_eq!(here, expected, "{name}");
    }
}

#[test]
fn loads_the_same_bits_from_every_format() {
    let mut seen = None;
    for name in ["zip.pth", "legacy.pth", "protocol_5.pth", "legacy_protocol_5.pth"] {
        let vs = net(3);
        let loaded = pretrained::load(&vs, &golden(name), &LoadOptions::default()).unwrap();
        assert_eq!(loaded.matched.len(), 8, "{loaded}");
        let text = format!("loaded 8 of 8 variables from {}", golden(name).display());
        assert_eq!(loaded.to_string(), text);
        for (variable, expected) in &expected()[name] {
            let ours = vs.variables().remove(variable);
            assert!(
                ours.map_or(variable == "norm.num_batches_tracked", |ours| described(&ours) == *expected),
                "{variable}"
            );
        }
        assert_eq!(*seen.get_or_insert_with(|| values(&vs)), values(&vs), "{name}");
    }
}

#[test]
fn finds_the_weights_of_a_training_script_and_takes_the_wrappers_prefix_off() {
    for name in ["zip_checkpoint.pth", "legacy_checkpoint.pth"] {
        let loaded = pretrained::load(&net(3), &golden(name), &LoadOptions::default()).unwrap();
        let text = loaded.to_string();
        assert!(text.contains(r#"under ["model_state_dict"]"#) && text.contains(r#"took "module." off"#), "{text}");
    }
}

#[test]
fn a_new_head_is_left_unchanged_by_name() {
    for skip in ["fc.", "fc.*", "fc*"] {
        let vs = net(5);
        let loaded = pretrained::load(&vs, &golden("legacy.pth"), &skipping(&[skip])).unwrap();
        assert_eq!(loaded.skipped, ["fc.bias", "fc.weight"]);
        assert!(loaded.to_string().ends_with("; left as they are: fc.bias, fc.weight"), "{loaded}");
        let values = values(&vs);
        assert!(values["fc.weight"].iter().all(|&bits| bits == 7f32.to_bits()));
        assert!(values["conv.weight"].iter().any(|&bits| bits != 7f32.to_bits()));
    }
}

#[test]
fn names_the_old_head_that_is_not_taken_and_the_new_one_that_is_left() {
    let vs = VarStore::new(Device::Cpu);
    let root = vs.root();
    nn::conv2d(&root / "conv", 1, 2, 2, Default::default());
    nn::batch_norm2d(&root / "norm", 2, Default::default());
    nn::linear(&root / "fc" / 0, 2, 5, Default::default());
    let loaded = pretrained::load(&vs, &golden("zip.pth"), &skipping(&["fc."])).unwrap();
    assert_eq!(
        (loaded.skipped.concat(), loaded.ignored.concat()),
        ("fc.0.biasfc.0.weight".into(), "fc.biasfc.weight".into())
    );
    let text = "; left as they are: fc.0.bias, fc.0.weight; not taken: fc.bias, fc.weight";
    assert!(loaded.to_string().ends_with(text), "{loaded}");
}

#[test]
fn names_both_shapes_of_what_does_not_fit_and_leaves_the_model() {
    for options in [LoadOptions::default(), loose()] {
        let message = refused(&net(5), &golden("zip.pth"), &options);
        assert!(message.contains("fc.weight is Float [3, 2] in the file and Float [5, 2] in the model"), "{message}");
        assert!(message.contains("fc.bias is Float [3]") && message.contains("leave out by name"), "{message}");
    }
}

#[test]
fn names_what_either_side_lacks_and_goes_on_when_not_strict() {
    let folder = tempfile::tempdir().unwrap();
    let path = changed(folder.path(), |tensors| {
        let bias = tensors.remove("conv.bias").unwrap();
        tensors.insert("conv.extra".into(), bias);
    });
    let vs = net(3);
    let message = refused(&vs, &path, &LoadOptions::default());
    assert!(message.contains("the file lacks conv.bias; only the file has conv.extra;"), "{message}");
    let loaded = pretrained::load(&vs, &path, &loose()).unwrap();
    assert_eq!((loaded.missing.concat(), loaded.unexpected.concat()), ("conv.bias".into(), "conv.extra".into()));
    let message = loaded.to_string();
    assert!(message.contains("loaded 7 of 8") && message.contains("not in the file: conv.bias"), "{message}");
    assert!(message.contains("only in the file: conv.extra"), "{message}");
    assert!(values(&vs)["conv.bias"].iter().all(|&bits| bits == 7f32.to_bits()));
}

#[test]
fn says_when_nothing_matches_and_when_a_name_to_leave_out_matches_nothing() {
    let other = VarStore::new(Device::Cpu);
    let _w = (other.root() / "head").zeros("weight", &[1]);
    let message = refused(&other, &golden("zip.pth"), &loose());
    assert!(message.contains("the file has conv.bias,") && message.contains("the model has head.weight"), "{message}");
    let loaded = pretrained::load(&net(3), &golden("zip.pth"), &skipping(&["cf."])).unwrap();
    assert_eq!(loaded.notes, [r#""cf." was to be left out, but nothing in the file or the model has that name"#]);
}

#[test]
fn converts_floats_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = changed(folder.path(), |tensors| {
        tensors.values_mut().filter(|one| one.kind() == Kind::Float).for_each(|one| *one = one.to_kind(Kind::Half));
    });
    let vs = net(3);
    let loaded = pretrained::load(&vs, &path, &LoadOptions::default()).unwrap();
    assert!(loaded.to_string().contains("8 converted from Half to Float"), "{loaded}");
    let plain = net(3);
    pretrained::load(&plain, &golden("zip.pth"), &LoadOptions::default()).unwrap();
    assert_eq!(values(&vs), values(&plain)); // quarters are exact in half precision
    let path =
        changed(folder.path(), |tensors| drop(tensors.insert("fc.bias".into(), Tensor::from_slice(&[1i64, 2, 3]))));
    let message = refused(&vs, &path, &LoadOptions::default());
    assert!(message.contains("fc.bias is Int64 [3] in the file and Float [3] in the model"), "{message}");
}

#[test]
fn loads_the_model_of_a_snapshot() {
    let folder = tempfile::tempdir().unwrap();
    let path = changed(folder.path(), |tensors| {
        let named = std::mem::take(tensors).into_iter();
        *tensors = named.map(|(name, tensor)| (format!("model.{name}"), tensor)).collect();
        tensors.insert("optimizer.momentum_buffer.fc.bias".into(), Tensor::zeros([3], (Kind::Float, Device::Cpu)));
    });
    let loaded = pretrained::load(&net(3), &path, &LoadOptions::default()).unwrap();
    assert!(loaded.matched.len() == 8 && loaded.to_string().contains("optimizer's state"), "{loaded}");
}

#[test]
fn refuses_by_name_what_a_pickle_wants_to_run() {
    for (name, global) in [
        ("evil.pth", "posix.system"),
        ("evil_legacy.pth", "posix.system"),
        ("evil_argument.pth", "posix.system"),
        ("evil_bare.pth", "posix.system"),
        ("plain_pickle.pth", "torch.storage._load_from_bytes"),
        ("module.pth", "torch.nn.modules.linear.Linear"),
    ] {
        let error = pretrained::load(&net(3), &golden(name), &loose()).unwrap_err();
        let message = error.to_string();
        assert!(matches!(error, PretrainedError::File { why: BadFile::Refused { .. }, .. }), "{name}: {message}");
        assert!(message.contains(&format!("refuses to run {global},")) && message.contains(name), "{message}");
    }
    assert!(!Path::new("/tmp/lockstep-was-here").exists());
}

#[test]
fn identifies_a_file_without_weights() {
    let folder = tempfile::tempdir().unwrap();
    let whole = fs::read(golden("zip.pth")).unwrap();
    let files: [(&str, &[u8], &str); 5] = [
        ("empty.pth", b"", "it is empty"),
        ("page.pth", b"<!DOCTYPE html><html><body>404</body></html>", "web page"),
        ("half.pth", &whole[..whole.len() / 2], "incomplete"),
        (
            "half.safetensors",
            &fs::read(golden("views.safetensors")).unwrap()[..1000],
            "1000 bytes where its header says",
        ),
        ("noise.pth", &[1, 2, 3], "neither"),
    ];
    for (name, bytes, expected) in files {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        let said = refused(&net(3), &path, &LoadOptions::default());
        assert!(said.contains(expected) && said.contains(name), "{said}");
    }
    let said = refused(&net(3), folder.path(), &LoadOptions::default());
    assert!(said.contains("it is a folder"), "{said}");
    let said = refused(&net(3), &folder.path().join("absent.pth"), &LoadOptions::default());
    assert!(said.contains("No such file"), "{said}");
    let said = refused(&net(3), Path::new("/dev/null"), &LoadOptions::default());
    assert!(said.contains("not a regular file"), "{said}");
}

#[test]
fn names_several_dtypes_that_were_converted() {
    let converted = vec![("a".into(), Kind::Half, Kind::Float), ("b".into(), Kind::Double, Kind::Float)];
    let mut loaded = Loaded::default();
    loaded.converted = converted;
    assert!(loaded.to_string().contains("2 converted from several to the model's"), "{loaded}");
}

/// Uses random weights, since real ones are large and copyrighted; names, shapes and formats are torchvision's.
#[test]
fn takes_every_variable_of_torchvisions_resnet18() {
    let Some(python) = python_with(&["torchvision"], "torchvision's resnet18") else { return };
    let folder = tempfile::tempdir().unwrap();
    let script = r#"
import sys, torch, torchvision
torch.manual_seed(1)
state = torchvision.models.resnet18().state_dict()
for name, new in ("zip.pth", True), ("legacy.pth", False):
    torch.save(state, f"{sys.argv[1]}/{name}", _use_new_zipfile_serialization=new)
print(float(sum(value.double().sum() for name, value in state.items() if "tracked" not in name)))
"#;
    let output = Command::new(&python).args(["-c", script]).arg(folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let sum: f64 = String::from_utf8_lossy(&output.stdout).trim().parse().unwrap();
    for name in ["zip.pth", "legacy.pth"] {
        let path = folder.path().join(name);
        let vs = VarStore::new(Device::Cpu);
        let _net = ResNet::resnet18(&vs.root(), 1000);
        let loaded = pretrained::load(&vs, &path, &LoadOptions::default()).unwrap();
        assert_eq!((loaded.matched.len(), loaded.notes.len()), (vs.len(), 0), "{loaded}");
        let here: f64 = vs.variables().values().map(|one| one.sum(Kind::Double).double_value(&[])).sum();
        assert!((here - sum).abs() < 1e-6 * sum.abs().max(1.0), "{here} {sum}");
    }
    // Another head: the error names what is missing, and it can be left out by name.
    let vs = VarStore::new(Device::Cpu);
    let options = ResNetOptions { head: Head::TwoLayers, ..ResNetOptions::new(3) };
    let _net = ResNet::new(&vs.root(), Depth::Eighteen, &options);
    let path = folder.path().join("legacy.pth");
    let message = pretrained::load(&vs, &path, &LoadOptions::default()).unwrap_err().to_string();
    assert!(message.contains("the file lacks fc.0.bias") && message.contains("only the file has fc.bias"), "{message}");
    let loaded = pretrained::load(&vs, &path, &skipping(&["fc."])).unwrap();
    assert!(loaded.matched.len() == 100 && loaded.skipped.len() == 4, "{loaded}");
    assert_eq!(loaded.ignored, ["fc.bias", "fc.weight"]);
}

/// The bounds of tch's initial weights, in the book's table next to PyTorch's.
#[test]
fn tch_draws_initial_weights_wider_than_pytorch() {
    let vs = VarStore::new(Device::Cpu);
    let root = vs.root();
    tch::manual_seed(0);
    let _ = nn::linear(&root / "linear", 64, 4096, Default::default());
    let _ = nn::conv2d(&root / "conv", 16, 256, 3, Default::default());
    let _ = nn::conv_transpose2d(&root / "transposed", 16, 256, 3, Default::default());
    let _ = nn::lstm(&root / "lstm", 16, 256, Default::default());
    let _ = nn::gru(&root / "gru", 16, 256, Default::default());
    let _ = nn::batch_norm2d(&root / "batch", 4096, Default::default());
    let _ = nn::layer_norm(&root / "layer", vec![8], Default::default());
    let _ = nn::group_norm(&root / "group", 2, 8, Default::default());
    let variables = vs.variables();
    let (six, bias) = (6f64.sqrt(), 1.0);
    for (name, inputs, bound) in [
        ("linear.weight", 64, six),
        ("linear.bias", 64, bias),
        ("conv.weight", 16 * 9, six),
        ("conv.bias", 1, 0.0),
        ("transposed.weight", 256 * 9, six),
        ("transposed.bias", 1, 0.0),
        ("lstm.weight_ih_l0", 16, six),
        ("lstm.weight_hh_l0", 256, six),
        ("lstm.bias_ih_l0", 1, 0.0),
        ("lstm.bias_hh_l0", 1, 0.0),
        ("gru.weight_ih_l0", 16, six),
        ("gru.weight_hh_l0", 256, six),
        ("gru.bias_ih_l0", 1, 0.0),
        ("batch.weight", 1, 1.0),
        ("batch.bias", 1, 0.0),
        ("layer.weight", 1, 1.0),
        ("layer.bias", 1, 0.0),
        ("group.weight", 1, 1.0),
        ("group.bias", 1, 0.0),
    ] {
        let widest = variables[name].abs().max().double_value(&[]) * f64::from(inputs).sqrt();
        assert!(widest <= bound + 1e-6 && widest >= bound * 0.99, "{name}: {widest}, not {bound}");
    }
    let least = |name: &str| variables[name].min().double_value(&[]);
    assert!(least("batch.weight") < 0.01 && least("layer.weight") == 1.0);
}
