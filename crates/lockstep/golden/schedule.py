#!/usr/bin/env python3
"""Writes schedule.json: learning rates as PyTorch's schedulers set them.

Needs PyTorch 2.11 (the CPU build will do) and writes to the path given, or to the committed file.

"plateau": ReduceLROnPlateau on an optimizer of two groups, whose rates are 0.1 and 0.01. A run has the options that differ from
the defaults, the metrics (numbers, or the texts "nan", "inf", "-inf"), and after each metric both rates, the best metric so far
and the two counters. "warmup": the rates of LinearLR with end_factor 1, by its closed form (LambdaLR with the same formula gives
the same bits, which is checked) and as it is chained from step to step, which rounds otherwise. "cosine": the rates of LinearLR and then
CosineAnnealingLR, by their closed forms, and as SequentialLR chains them.

JSON has all bits of a float. Left out: other schedulers.
"""

import json
import math
import pathlib
import sys
import warnings

import torch
from torch.optim import lr_scheduler

OUT = pathlib.Path(__file__).with_name("schedule.json")
INF, NAN = math.inf, math.nan
FALLING = [1.0, 0.8, 0.79, 0.7899, 0.78985, 0.78985, 0.79, 0.78985, 0.5, 0.5, 0.5, 0.5, 0.6, 0.4, 0.4]
RISING = [0.1, 0.5, 0.5, 0.50004, 0.5, 0.6, 0.55, 0.6, 0.6, 0.60007, 0.6, 0.9, 0.9, 0.9]
FLAT = [1.0] * 24

# name, options, metrics
PLATEAUS = [
    ("defaults", {}, FLAT + [0.5] + FLAT),
    ("patience 0", {"patience": 0}, FALLING),
    ("patience 2", {"patience": 2, "factor": 0.5}, FALLING),
    ("cooldown", {"patience": 1, "cooldown": 3, "factor": 0.5}, FLAT),
    ("cooldown after an improvement", {"patience": 0, "cooldown": 2, "factor": 0.5}, [1.0, 1.0, 0.5, 1.0, 1.0, 1.0, 0.4, 1.0]),
    ("absolute", {"patience": 1, "threshold": 0.1, "threshold_mode": "abs"}, FALLING),
    ("relative", {"patience": 1, "threshold": 0.1}, FALLING),
    ("max", {"mode": "max", "patience": 1, "factor": 0.3}, RISING),
    ("max absolute", {"mode": "max", "patience": 1, "threshold": 0.05, "threshold_mode": "abs"}, RISING),
    ("max below zero", {"mode": "max", "patience": 0, "factor": 0.5}, [-1.0, -1.0, -0.99995, -0.9999, -0.5, -0.6]),
    ("min below zero", {"patience": 0, "factor": 0.5}, [-1.0, -1.0, -1.00005, -1.0001, -2.0, -1.0]),
    ("min_lr", {"patience": 0, "min_lr": 0.005}, FLAT),
    ("min_lr of each", {"patience": 0, "factor": 0.5, "min_lr": [0.02, 0.004]}, FLAT),
    ("min_lr above", {"patience": 0, "min_lr": 0.05}, FLAT[:4]),
    ("eps", {"patience": 0, "eps": 0.02}, FLAT[:6]),
    ("factor 0", {"patience": 0, "factor": 0.0}, FLAT[:4]),
    ("threshold 0", {"patience": 0, "threshold": 0.0}, [1.0, 1.0, 0.9999999999999999, 0.5]),
    ("threshold 1", {"patience": 1, "threshold": 1.0}, [1.0, 0.5, 0.0, -1.0]),
    ("nan", {"patience": 1}, [NAN, NAN, 1.0, NAN, 0.5, NAN, NAN, NAN, 0.4]),
    ("nan, max", {"mode": "max", "patience": 1}, [NAN, NAN, 1.0, NAN, 2.0, NAN, NAN]),
    ("infinite", {"patience": 1}, [INF, INF, 1.0, INF, INF, -INF, -INF, -INF, 0.0]),
    ("infinite, max", {"mode": "max", "patience": 1}, [-INF, -INF, 1.0, INF, INF, INF, -INF]),
    ("infinite, absolute", {"patience": 1, "threshold_mode": "abs"}, [INF, INF, 1.0, -INF, -INF, -INF, -INF]),
]

# rate, start factor, steps of the warm-up
WARMUPS = [(0.1, 1 / 3, 5), (0.4, 0.25, 20), (0.8, 1 / 8, 7), (1e-3, 0.001, 13), (3.2, 1.0, 4), (0.3, 0.5, 1)]

# rate, start factor, steps of the warm-up, lowest rate, all steps
COSINES = [(0.1, 0.25, 4, 0.01, 20), (6e-4, 0.01, 7, 6e-5, 40), (1.0, 1.0, 1, 0.0, 9)]


def optimizer(*rates):
    return torch.optim.SGD([{"params": [torch.zeros(1, requires_grad=True)], "lr": rate} for rate in rates])


def text(value):
    return value if math.isfinite(value) else str(value)


def plateau(name, options, metrics):
    opt = optimizer(0.1, 0.01)
    scheduler = lr_scheduler.ReduceLROnPlateau(opt, **options)
    after = []
    for metric in metrics:
        scheduler.step(metric)
        rates = [group["lr"] for group in opt.param_groups]
        after.append([*rates, text(scheduler.best), scheduler.num_bad_epochs, scheduler.cooldown_counter])
    options = {key: [value] if key == "min_lr" and not isinstance(value, list) else value for key, value in options.items()}
    return {"name": name, "options": options, "metrics": [text(metric) for metric in metrics], "after": after}


def warmup(rate, start_factor, steps):
    share = lambda step: start_factor + (1.0 - start_factor) * min(steps, step) / steps
    linear = lr_scheduler.LinearLR(optimizer(rate), start_factor, 1.0, steps)
    by_lambda = lr_scheduler.LambdaLR(optimizer(rate), share)
    chained, closed = [], []
    for _ in range(steps + 4):
        closed += linear._get_closed_form_lr()
        chained += linear.get_last_lr()
        assert by_lambda.get_last_lr() == closed[-1:]
        linear.step()
        by_lambda.step()
    return {"lr": rate, "start_factor": start_factor, "steps": steps, "closed": closed, "chained": chained}


def cosine(rate, start_factor, rising, least, steps):
    parts = lambda opt: (lr_scheduler.LinearLR(opt, start_factor, 1.0, rising), lr_scheduler.CosineAnnealingLR(opt, steps - rising, least))
    linear, falling = parts(optimizer(rate))
    closed, chained = [], []
    for step in range(steps + 1):
        part = linear if step < rising else falling
        part.last_epoch = step if step < rising else step - rising
        closed += part._get_closed_form_lr()
    opt = optimizer(rate)
    linear, falling = parts(opt)
    both = lr_scheduler.SequentialLR(opt, [linear, falling], [rising])
    for _ in range(steps + 1):
        chained += both.get_last_lr()
        both.step()
    return {"lr": rate, "start_factor": start_factor, "rising": rising, "min_lr": least, "steps": steps, "closed": closed, "chained": chained}


def main():
    if not torch.__version__.startswith("2.11."):
        sys.exit(f"needs PyTorch 2.11, this is {torch.__version__}")
    warnings.simplefilter("ignore")  # that no optimizer steps before its scheduler
    parts = {"plateau": [plateau(*run) for run in PLATEAUS], "warmup": [warmup(*run) for run in WARMUPS], "cosine": [cosine(*run) for run in COSINES]}
    lines = {key: ",\n".join("  " + json.dumps(run, separators=(",", ":")) for run in runs) for key, runs in parts.items()}
    text = f'{{"torch": "{torch.__version__}",\n' + ",\n".join(f'"{key}": [\n{runs}\n]' for key, runs in lines.items()) + "}\n"
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    out.write_text(text)
    print(f"wrote {out}: {len(text)} bytes")


if __name__ == "__main__":
    main()
