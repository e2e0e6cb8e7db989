//! Reads the weights of a ResNet that Python's torchvision initialized from a file: the logits must be equal.
//!
//! Needs a Python with PyTorch 2.11 and torchvision (`LOCKSTEP_PYTHON`, otherwise `python3`); prints "not verified here"
//! without one.

use std::process::Command;

use lockstep::models::{Depth, ResNet, ResNetOptions};
use tch::nn::{ModuleT, VarStore};
use tch::{Device, Tensor, no_grad};

/// The exit code of the program below if a module is missing.
const NO_MODULE: i32 = 3;

/// Writes the weights, a batch and its logits as safetensors: a JSON header with its length in front, and the tensors' bytes.
const EXPORT: &str = r#"
import json, struct, sys
try:
    import torch, torchvision
except ImportError:
    sys.exit(3)
assert torch.__version__.startswith("2.11.")
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

/// Returns true if Python wrote its files into `folder`.
fn export(folder: &std::path::Path) -> bool {
    let python = std::env::var("LOCKSTEP_PYTHON").unwrap_or_else(|_| "python3".into());
    let output = Command::new(&python).args(["-c", EXPORT]).arg(folder).output();
    let Some(output) = output.ok().filter(|output| output.status.code() != Some(NO_MODULE)) else {
        println!(
            "not verified here: torchvision's own weights (no torchvision in {python}; LOCKSTEP_PYTHON names another)"
        );
        return false;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    true
}

#[test]
fn weights_from_torchvision_give_its_logits_within_1e_5() {
    // Tests run in parallel; threads of all of them would wait for each other.
    tch::set_num_threads(1);
    let folder = tempfile::tempdir().unwrap();
    if !export(folder.path()) {
        return;
    }
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
