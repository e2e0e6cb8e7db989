#!/usr/bin/env python3
"""Writes pretrained/: small files of weights as PyTorch and others write them, and their contents.

Needs PyTorch 2.11 (the CPU build will do) with safetensors, and writes to the folder given, or to the committed one. Each file of
weights is read back by Python, and expected.json has, for each, every tensor's dtype, shape and values.

The bytes differ from run to run: torch.save names storages after their addresses.

evil*.pth would run a command if Python loaded them without protection (`touch /tmp/lockstep-was-here`). This script never loads them.
"""

import collections
import io
import json
import os
import pathlib
import pickle
import struct
import sys
import zipfile

import torch
from safetensors.torch import save_file

OUT = pathlib.Path(__file__).with_name("pretrained")
DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
    torch.bool,
]  # fmt: skip


class Evil:
    def __reduce__(self):
        return os.system, ("touch /tmp/lockstep-was-here",)


class EvilArgument:
    """A harmless call of a harmless name, whose argument is malicious."""

    def __reduce__(self):
        return collections.OrderedDict, ([("w", Evil())],)


class Net(torch.nn.Module):
    """A layer, a normalization with its buffers, and a head."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 2, 2)
        self.norm = torch.nn.BatchNorm2d(2)
        self.fc = torch.nn.Linear(2, 3)


def net():
    model = Net()
    with torch.no_grad():
        for at, tensor in enumerate(model.state_dict().values()):
            tensor.copy_((torch.arange(tensor.numel()) - at).reshape(tensor.shape) / 4)
    return model


def views():
    """Every dtype, and every layout of a tensor in its storage."""
    base = torch.arange(24, dtype=torch.float32) / 8
    tensors = {str(dtype).removeprefix("torch."): (torch.arange(6) % 5 - 1).to(dtype).reshape(2, 3) for dtype in DTYPES}
    tensors |= {"whole": base.reshape(4, 6), "tied": base, "turned": base.reshape(4, 6).t(), "part": base[5:11]}
    tensors |= {"steps": base.reshape(2, 3, 4)[:, 1:, ::2], "repeated": base[3:4].expand(2, 5), "scalar": base[7]}
    tensors |= {"empty": torch.zeros(0, 3), "parameter": torch.nn.Parameter(torch.tensor([1.5, -2.5]))}
    return tensors


def checkpoint():
    """As a training script saves it, from within DistributedDataParallel."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sum(parameter.sum() for parameter in model.parameters()).backward()
    optimizer.step()
    weights = {f"module.{name}": tensor for name, tensor in model.state_dict().items()}
    facts = {"epoch": 3, "best_acc": 0.75, "arch": "net", "done": False, "none": None, "big": 1 << 80, "shape": torch.Size([2, 3])}
    facts |= {"dtype": torch.float32, "device": torch.device("cpu"), "lr": torch.tensor(0.1)}
    return facts | {"model_state_dict": weights, "optimizer": optimizer.state_dict()}


def repacked(data, compression=zipfile.ZIP_STORED, change=lambda name, content: content):
    """The same archive with other contents, as other zip programs write it."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w", compression) as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
    return out.getvalue()


def big_endian(data):
    """As a big-endian machine saves float32 weights."""
    def change(name, content):
        if name.endswith("/byteorder"):
            return b"big"
        return b"".join(content[at : at + 4][::-1] for at in range(0, len(content), 4)) if "/data/" in name else content
    return repacked(data, change=change)


def old_parameters():
    """A legacy file as PyTorch 0.2 wrote it under Python 2: parameters by copy_reg's protocol, texts as bytes, a view.

    Put together by hand, opcode by opcode.
    """
    short = lambda text: b"U" + bytes([len(text)]) + text.encode()
    glob = lambda module, name: b"c" + module.encode() + b"\n" + name.encode() + b"\n"

    def storage(key, numel, view):
        view = b"N" if view is None else b"(" + short("view") + b"K%cK%ct" % view
        return b"(" + short("storage") + glob("torch", "FloatStorage") + short(key) + short("cpu") + b"K" + bytes([numel]) + view + b"tQ"

    def tensor(storage, offset, size, stride):
        ints = lambda values: b"(" + b"".join(b"K" + bytes([value]) for value in values) + b"t"
        return glob("torch._utils", "_rebuild_tensor") + b"(" + storage + b"K" + bytes([offset]) + ints(size) + ints(stride) + b"tR"

    def parameter(data):  # Variable's state was (data, grad, backward hooks, requires_grad, volatile)
        hooks = glob("collections", "OrderedDict") + b"]\x85R"
        return glob("torch.nn.parameter", "Parameter") + b")\x81(" + data + b"N" + hooks + b"\x88\x89tb"

    body = b"\x80\x02" + glob("collections", "OrderedDict") + b"](" 
    body += b"](" + short("w") + parameter(tensor(storage("k0", 6, None), 0, [2, 3], [3, 1])) + b"e"
    body += b"](" + short("v") + parameter(tensor(storage("k0", 6, (2, 4)), 1, [3], [1])) + b"e"
    body += b"e\x85R."
    info = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}
    start = [pickle.dumps(value, 2) for value in (0x1950A86A20F9469CFC6C, 1001, info)]
    keys = b"\x80\x02](" + short("k0") + b"e."
    return b"".join(start) + body + keys + struct.pack("<q6f", 6, *(value / 2 for value in range(6)))


def saved(value, **options):
    out = io.BytesIO()
    torch.save(value, out, **options)
    return out.getvalue()


def files():
    state, legacy = net().state_dict(), {"_use_new_zipfile_serialization": False}
    small = saved({"w": torch.arange(3) / 2, "b": torch.arange(2)})
    return {
        "zip.pth": saved(state),
        "legacy.pth": saved(state, **legacy),
        "zip_views.pth": saved(views()),
        "legacy_views.pth": saved(views(), **legacy),
        "zip_checkpoint.pth": saved(checkpoint()),
        "legacy_checkpoint.pth": saved(checkpoint(), **legacy),
        "protocol_5.pth": saved(state, pickle_protocol=5),
        "legacy_protocol_5.pth": saved(state, pickle_protocol=5, **legacy),
        "deflated.pth": repacked(small, zipfile.ZIP_DEFLATED),
        "big_endian.pth": big_endian(saved({"w": torch.arange(3) / 2})),
        "old_parameters.pth": old_parameters(),
        "evil.pth": saved({"state_dict": {"w": torch.ones(2), "x": Evil()}}),
        "evil_legacy.pth": saved(Evil(), **legacy),
        "evil_argument.pth": saved({"state_dict": EvilArgument()}),
        "evil_bare.pth": pickle.dumps(Evil(), 2),
        "plain_pickle.pth": pickle.dumps({"w": torch.ones(2)}, 2),
        "module.pth": saved(torch.nn.Linear(2, 2)),
    }


def described(tensor):
    values = [float(value) for value in tensor.detach().flatten().double()]
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape), "values": values}


def read_back(path):
    """What Python reads; it converts big-endian bytes itself."""
    weights = torch.load(path, weights_only=not path.name.startswith(("old", "legacy_protocol", "protocol")))
    return weights.get("model_state_dict", weights)


def main():
    if not torch.__version__.startswith("2.11."):
        sys.exit(f"needs PyTorch 2.11, this is {torch.__version__}")
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    out.mkdir(exist_ok=True)
    expected = {}
    for name, data in files().items():
        (out / name).write_bytes(data)
        if name.startswith(("evil", "plain", "module")):
            continue
        weights = read_back(out / name)
        expected[name] = {key: described(tensor) for key, tensor in sorted(weights.items())}
    whole = {name: tensor.contiguous().clone() for name, tensor in views().items()}
    save_file(whole, out / "views.safetensors", metadata={"format": "pt"})
    expected["views.safetensors"] = {key: described(tensor) for key, tensor in sorted(whole.items())}
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(tensors)}" for name, tensors in expected.items())
    (out / "expected.json").write_text(f"{{\n{lines}\n}}\n")
    print(f"wrote {len(os.listdir(out))} files, {sum(path.stat().st_size for path in out.iterdir())} bytes")


if __name__ == "__main__":
    main()
