#!/usr/bin/env python3
"""Writes amp.json: Python's autocast and GradScaler on the CPU.

Needs PyTorch 2.11 (the CPU build will do). "kinds" has the type of the result of operations under autocast, for both types and
without autocast. "scales" has runs of the scaler: its options, whether the gradients of each step are finite, and after each update the
scale, the count of good steps, and the weight, which has a gradient of 1/8 in step t, or an infinite one. "training" has the losses of
a small network under autocast with `float16` and a scaler whose first scale is too large, and the scale after each step.

Bits of `training` depend on the processor; a test compares with a tolerance.
"""

import json
import pathlib

import torch
import torch.nn.functional as F

OUT = pathlib.Path(__file__).with_name("amp.json")

OPERATIONS = {
    "matmul": lambda x, y: x @ y,
    "linear": lambda x, y: F.linear(x, y),
    "add": lambda x, y: x + y,
    "relu of matmul": lambda x, y: F.relu(x @ y),
    "softmax of matmul": lambda x, y: F.softmax(x @ y, dim=1),
    "mse_loss of matmul": lambda x, y: F.mse_loss(x @ y, y),
    "cross_entropy of matmul": lambda x, y: F.cross_entropy(x @ y, torch.tensor([0, 1, 2, 3])),
    "layer_norm of matmul": lambda x, y: F.layer_norm(x @ y, [4]),
    "conv2d": lambda x, y: F.conv2d(x.reshape(1, 1, 4, 4), y[:2, :2].reshape(1, 1, 2, 2)),
}

RUNS = [
    ({"growth_interval": 3}, "gggggggib" + "gggi"),
    ({"init_scale": 1024.0, "growth_factor": 1.7, "backoff_factor": 0.3, "growth_interval": 2}, "ggigiigggg"),
    ({"init_scale": 2.0**126, "growth_interval": 1}, "gggg"),
    ({"enabled": False}, "gg"),
]


def kinds():
    x, y = torch.arange(16.0).reshape(4, 4) / 16, torch.ones(4, 4)
    result = {}
    for name, operation in OPERATIONS.items():
        result[name] = {}
        for dtype in (torch.bfloat16, torch.float16):
            with torch.autocast("cpu", dtype=dtype):
                result[name][str(dtype).removeprefix("torch.")] = str(operation(x, y).dtype).removeprefix("torch.")
    return result


def scales(options, steps):
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    scaler = torch.amp.GradScaler("cpu", **options)
    after = []
    for step in steps:
        optimizer.zero_grad()
        slope = {"g": 0.125, "i": float("inf"), "b": float("nan")}[step]
        scaler.scale((weight * slope).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        state = scaler.state_dict()
        after.append([scaler.get_scale(), state.get("_growth_tracker", 0), *weight.tolist()])
    return {"options": options, "steps": steps, "after": after}


def training():
    width = 8
    element = lambda *shape: ((torch.arange(torch.Size(shape).numel()) * 7 % 11 - 5) / 8).reshape(shape)
    weights = [torch.nn.Parameter(element(16, width)), torch.nn.Parameter(element(4, 16))]
    inputs, targets = element(32, width), torch.arange(32) % 4
    optimizer = torch.optim.SGD(weights, lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=4)
    losses, after = [], []
    for _ in range(20):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(F.linear(F.relu(F.linear(inputs, weights[0])), weights[1]), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        after.append(scaler.get_scale())
    return {"losses": losses, "scales": after}


golden = {
    "torch": torch.__version__,
    "kinds": kinds(),
    "scales": [scales(options, steps) for options, steps in RUNS],
    "training": training(),
}
OUT.write_text(json.dumps(golden) + "\n")
