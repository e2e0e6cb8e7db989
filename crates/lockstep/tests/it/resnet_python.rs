//! Reads the weights of a ResNet that Python's torchvision initialized from a file: the logits must be equal.

use std::process::Command;

use lockstep::models::{Depth, ResNet, ResNetOptions};
use lockstep_testkit::python::python_with;
use tch::nn::{ModuleT, VarStore};
use tch::{Device, Tensor, no_grad};

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
