#!/usr/bin/env python3
"""Writes resnet.json: torchvision's ResNet-18 and ResNet-34, for crates/lockstep/tests/it/resnet_golden.rs.

Needs PyTorch 2.11, torchvision 0.26 and NumPy (CPU builds will do), and writes to the path given, or to the committed file.
The networks have their full width. Their 11 and 21 million weights are not stored: both sides draw them from the SplitMix64
stream of lockstep::data::rng::KeyedRng, of which this is a second implementation. Tensor number t of the state dict
(num_batches_tracked left out) takes the stream of the key [SEED, t], pictures and labels those of [SEED, PICTURES + run].

"parameters" and "buffers" are names in torchvision's order, "sizes" the parameters' numbers of elements; "logits" are those
of evaluation, row by row; "losses" those of five steps of SGD in training mode, each before its step, and "running" the sum
of all running means and of all running variances after them.

Training is in double precision. In single, one rounding that moves one number across a ReLU's zero changes all that
follows: with one thread and with two, or with and without oneDNN, Python's own fifth losses are up to 1e-2 apart.
"""

import json
import math
import pathlib
import sys

import numpy as np
import torch
import torchvision
from torch import nn

OUT = pathlib.Path(__file__).with_name("resnet.json")
SEED, PICTURES = 2026, 1000
GAMMA, MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1

# name, torchvision's function, classes, two layers in the head, (batch, side) of each evaluation, (batch, side) of training
RUNS = [
    ("resnet18", torchvision.models.resnet18, 10, False, [(4, 32), (2, 64)], (8, 32)),
    ("resnet34", torchvision.models.resnet34, 3, True, [(4, 32)], (8, 32)),
]
STEPS, LR = 5, 0.01


def mix(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def uniform(key, count):
    """KeyedRng::uniform: multiples of 2⁻²⁴ in [0, 1), as float32."""
    state = mix(GAMMA ^ len(key))
    for part in key:
        state = (mix(state ^ part) + GAMMA) & MASK
    z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GAMMA) + np.uint64(state)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


def scaled(name, shape, u):
    """A tensor's values from uniform numbers: with the spread of training, so that a mixed-up tensor is detected."""
    one = np.float32
    if name.endswith("running_var"):
        return u + one(0.5)
    if name.endswith("running_mean") or name.endswith("bias"):
        return (u - one(0.5)) * one(0.25)
    if len(shape) == 1:
        return u * one(0.5) + one(0.75)
    # kaiming_uniform_(mode="fan_out") for convolutions, ±1/√inputs for linear layers.
    bound = math.sqrt(6 / (shape[0] * shape[2] * shape[3])) if len(shape) == 4 else 1 / math.sqrt(shape[1])
    return (u * one(2) - one(1)) * one(bound)


def make(function, classes, two_layers):
    model = function(weights=None, num_classes=classes)
    if two_layers:
        features = model.fc.in_features
        model.fc = nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.Linear(features, classes))
    state = {name: t for name, t in model.state_dict().items() if not name.endswith("num_batches_tracked")}
    with torch.no_grad():
        for number, (name, tensor) in enumerate(state.items()):
            values = scaled(name, tensor.shape, uniform([SEED, number], tensor.numel()))
            tensor.copy_(torch.from_numpy(values).reshape(tensor.shape))
    return model, list(state)


def pictures(run, batch, side, classes):
    numbers = uniform([SEED, PICTURES + run], batch * 3 * side * side + batch)
    inputs = torch.from_numpy(numbers[:-batch] * np.float32(2) - np.float32(1)).reshape(batch, 3, side, side)
    return inputs, torch.from_numpy((numbers[-batch:] * np.float32(classes)).astype(np.int64))


def train(model, inputs, targets):
    model.double().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9, weight_decay=1e-5)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs.double()), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def running(model, which):
    return sum(b.double().sum().item() for name, b in model.named_buffers() if name.endswith(which))


def record(run):
    _, function, classes, two_layers, evaluations, (batch, side) = run
    model, state = make(function, classes, two_layers)
    parameters = dict(model.named_parameters())
    model.eval()
    logits = []
    for number, (n, size) in enumerate(evaluations):
        with torch.no_grad():
            logits.append(model(pictures(number, n, size, classes)[0]).flatten().tolist())
    losses = train(model, *pictures(len(evaluations), batch, side, classes))
    return {
        "classes": classes,
        "two_layers": two_layers,
        "parameters": list(parameters),
        "sizes": [parameter.numel() for parameter in parameters.values()],
        "buffers": [name for name in state if name not in parameters],
        "evaluations": evaluations,
        "logits": logits,
        "training": (batch, side),
        "losses": losses,
        "running": [running(model, which) for which in ("running_mean", "running_var")],
    }


def main():
    torch.set_num_threads(1)
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    versions = {"torch": torch.__version__, "torchvision": torchvision.__version__}
    golden = {name: version.split("+")[0] for name, version in versions.items()}
    golden |= {"seed": SEED, "pictures": PICTURES, "lr": LR, "networks": {run[0]: record(run) for run in RUNS}}
    out.write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    main()
