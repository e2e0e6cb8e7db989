#!/usr/bin/env python3
"""Writes metrics.json: PyTorch's cross entropy, accuracy and top-k accuracy of targets in several shapes.

Needs PyTorch 2.11 (the CPU build will do). The logits are those of `formula`, of the targets' shape and 7 classes; a case has the targets,
the index to ignore, the smoothing, the mean and the sum of the loss, and which fraction of the targets that count is among the k best.
"""

import json
import math
import pathlib

import torch
import torch.nn.functional as F

import ddp

OUT = pathlib.Path(__file__).with_name("metrics.json")
CLASSES = 7


def formula(shape, salt, scale):
    """In double precision."""
    return torch.tensor(ddp.formula(math.prod(shape), salt), dtype=torch.double).reshape(shape) * scale


def case(shape, ignore_index, ignored, smoothing):
    count = math.prod(shape)
    targets = torch.tensor([i * 5 % CLASSES for i in range(count)]).reshape(shape)
    targets.view(-1)[list(ignored)] = ignore_index
    logits = formula((*shape, CLASSES), 3, 2.0)
    rows, numbers = logits.reshape(-1, CLASSES), targets.reshape(-1)
    loss = lambda reduction: F.cross_entropy(rows, numbers, reduction=reduction, ignore_index=ignore_index, label_smoothing=smoothing).item()
    counted = numbers != ignore_index
    best = lambda k: (rows.topk(k).indices == numbers[:, None]).any(1)[counted].double().mean().item()
    return {
        "shape": shape,
        "targets": numbers.tolist(),
        "ignore_index": ignore_index,
        "label_smoothing": smoothing,
        "counted": int(counted.sum()),
        "mean": loss("mean"),
        "sum": loss("sum"),
        "perplexity": math.exp(loss("mean")),
        "top": [best(k) for k in range(1, CLASSES + 1)],
    }


cases = [
    case([6], -100, [], 0.0),
    case([6], -100, [1, 4], 0.1),
    case([3, 5], -100, [0, 7, 8], 0.0),
    case([3, 5], 2, [], 0.0),
    case([2, 3, 4], 0, [5], 0.2),
]
OUT.write_text(json.dumps({"torch": torch.__version__, "cases": cases}) + "\n")
