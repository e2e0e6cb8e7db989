#!/usr/bin/env python3
"""Writes optim.json: ten steps of Python's SGD, Adam and AdamW, bit for bit.

Needs PyTorch 2.11 (the CPU build will do) and writes to the path given, or to the committed file. The "model" is two
parameters, w [3, 7] and b [3]; in step t (from 1) parameter p has the gradient c + p / 4, where c depends on the
element i and on t alone and is exact in binary:  c = ((7 i + 3 t) mod 11 - 5) / 8.

"fused" has the bits of w and b after each step with fused=True, the kernels that Lockstep calls; "default" has those
after the tenth step of the plain implementation, which Python uses on the CPU by default.

The bits are those of processors with AVX2 or AVX-512 (both give the same; the script checks when it can, through
ATEN_CPU_CAPABILITY). Left out: CUDA, half precision, gradient scaling.
"""

import json
import os
import pathlib
import subprocess
import sys

import torch

OUT = pathlib.Path(__file__).with_name("optim.json")
STEPS = 10
DTYPES = {"float32": torch.float32, "float64": torch.float64}

# (optimizer, name, options, when b has a gradient and how gradients are cleared)
#   always: in every step.  zeroed: in steps 1, 3, 5 … from step 3 on, zeroed in between (undefined before step 3).
#   none: the same steps, set to None in between.
RUNS = [
    ("SGD", "defaults", {}, "always"),
    ("SGD", "momentum", {"lr": 0.1, "momentum": 0.9}, "always"),
    ("SGD", "nesterov", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True}, "always"),
    ("SGD", "dampening", {"lr": 0.1, "momentum": 0.8, "dampening": 0.3}, "always"),
    ("SGD", "maximize", {"lr": 0.1, "weight_decay": 0.1, "maximize": True}, "always"),
    ("SGD", "zeroed", {"lr": 0.1, "momentum": 0.9, "dampening": 0.5, "weight_decay": 0.01}, "zeroed"),
    ("SGD", "none", {"lr": 0.1, "momentum": 0.9, "dampening": 0.5, "weight_decay": 0.01}, "none"),
    ("Adam", "defaults", {}, "always"),
    ("Adam", "options", {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}, "always"),
    ("Adam", "amsgrad", {"lr": 0.05, "betas": (0.8, 0.9), "amsgrad": True}, "always"),
    ("Adam", "maximize", {"lr": 0.05, "weight_decay": 0.1, "maximize": True}, "always"),
    ("Adam", "zeroed", {"lr": 0.05, "weight_decay": 0.1}, "zeroed"),
    ("Adam", "none", {"lr": 0.05, "betas": (0.8, 0.9), "amsgrad": True}, "none"),
    ("AdamW", "defaults", {}, "always"),
    ("AdamW", "options", {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}, "always"),
    ("AdamW", "amsgrad", {"lr": 0.05, "betas": (0.8, 0.9), "amsgrad": True}, "always"),
    ("AdamW", "maximize", {"lr": 0.05, "maximize": True}, "always"),
    ("AdamW", "zeroed", {"lr": 0.05, "weight_decay": 0.1}, "zeroed"),
    ("AdamW", "none", {"lr": 0.05, "betas": (0.8, 0.9), "amsgrad": True}, "none"),
]
OPTIONS = {
    "SGD": ["lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize"],
    "Adam": ["lr", "betas", "eps", "weight_decay", "amsgrad", "maximize"],
    "AdamW": ["lr", "betas", "eps", "weight_decay", "amsgrad", "maximize"],
}


def parameters(dtype):
    w = (torch.arange(21, dtype=dtype) / 16 - 0.5).reshape(3, 7)
    b = torch.arange(3, dtype=dtype) / 4 - 0.25
    return w.requires_grad_(), b.requires_grad_()


def give_gradient(p, t):
    i = torch.arange(p.numel())
    c = (((7 * i + 3 * t) % 11 - 5).to(p.dtype) / 8).reshape(p.shape)
    (p * (c + p.detach() / 4)).sum().backward()


def bits(p):
    """Each element's bits as big-endian hex, one after the other."""
    return p.detach().numpy().astype(p.detach().numpy().dtype.newbyteorder(">")).tobytes().hex()


def train(optimizer, options, schedule, dtype, fused):
    w, b = parameters(dtype)
    # One group each: Python's fused SGD cannot start one parameter's momentum later than another's in its group.
    opt = getattr(torch.optim, optimizer)([{"params": [w]}, {"params": [b]}], fused=fused, **options)
    after = []
    for t in range(1, STEPS + 1):
        opt.zero_grad(set_to_none=schedule != "zeroed")
        give_gradient(w, t)
        if schedule == "always" or (t % 2 == 1 and t >= 3):
            give_gradient(b, t)
        opt.step()
        after.append([bits(w), bits(b)])
    return opt, after


def golden():
    torch.set_num_threads(1)
    runs = []
    for optimizer, name, options, schedule in RUNS:
        for dtype_name, dtype in DTYPES.items():
            opt, fused = train(optimizer, options, schedule, dtype, fused=True)
            _, default = train(optimizer, options, schedule, dtype, fused=None)
            full = {key: opt.defaults[key] for key in OPTIONS[optimizer]}
            runs.append(
                {"optimizer": optimizer, "name": name, "dtype": dtype_name, "schedule": schedule, "options": full}
                | {"fused": fused, "default": default[-1]}
            )
    return runs


def as_text(runs):
    lines = ",\n".join("  " + json.dumps(run, separators=(",", ":")) for run in runs)
    return f'{{"torch": "{torch.__version__}", "runs": [\n{lines}\n]}}\n'


def main():
    if not torch.__version__.startswith("2.11."):
        sys.exit(f"needs PyTorch 2.11, this is {torch.__version__}")
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        sys.exit("needs a processor with AVX2: others round differently")
    text = as_text(golden())
    if sys.argv[1:] == ["-"]:
        sys.stdout.write(text)
        return
    environment = os.environ | {"ATEN_CPU_CAPABILITY": "avx2"}
    other = subprocess.run([sys.executable, __file__, "-"], env=environment, check=True, capture_output=True, text=True)
    if other.stdout != text:
        sys.exit("AVX2 gives other bits than this processor's own kernels")
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    out.write_text(text)
    print(f"wrote {out}: {len(text)} bytes")


if __name__ == "__main__":
    main()
