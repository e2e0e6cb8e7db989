#!/usr/bin/env python3
"""Installs the wheel of the command in a new environment, and does what a learner does in the first minute.

    scripts/check_wheel.py [WHEEL]

Without WHEEL it takes the newest of this machine's architecture in target/wheel, where scripts/wheel.sh puts them. The environment has
nothing but PyTorch: that of LOCKSTEP_PYTHON, of set-up (scripts/setup.sh --python-peer) or of `python3`, linked and not copied. Prints how
long each step took, next to the load of the machine, and compares with no limit: seconds hold for one machine only.
"""

import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Longer than any step takes on a busy machine, in seconds.
DEADLINE = 600
# Where a Python keeps its packages, and the version of its PyTorch.
PACKAGES = "import importlib.metadata, json, sysconfig; " \
    "print(json.dumps([sysconfig.get_path('purelib'), importlib.metadata.version('torch'), sysconfig.get_python_version()]))"
# A worker without PyTorch.
WORKER = "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n"
# A right answer to the task `mean` of lab 05, and a wrong one: each rank returns its own mean.
RIGHT = """
    totals = torch.stack([losses.sum(), torch.tensor(losses.numel(), dtype=torch.float64)])
    dist.all_reduce(totals)
    return (totals[0] / totals[1]).item()
"""
WRONG = """
    return losses.mean().item() if losses.numel() else 0.0
"""


class Fault(Exception):
    """What the wheel does not do."""


def main(arguments):
    if len(arguments) > 1 or arguments[:1] == ["--help"]:
        print(__doc__.strip())
        return 0 if arguments == ["--help"] else 2
    wheel = pathlib.Path(arguments[0]).resolve() if arguments else newest()
    if wheel is None:
        print("check-wheel: not verified here: the wheel (scripts/wheel.sh builds it)")
        return 0
    if not wheel.is_file():
        print(f"check-wheel: error: there is no {wheel}", file=sys.stderr)
        return 2
    found = pytorch()
    if found is None:
        print("check-wheel: not verified here: the wheel with PyTorch (scripts/setup.sh --python-peer, or LOCKSTEP_PYTHON)")
        return 0
    with tempfile.TemporaryDirectory(prefix="lockstep_wheel_") as folder:
        try:
            check(pathlib.Path(folder), wheel, *found)
        except Fault as fault:
            print(f"check-wheel: error: {fault}", file=sys.stderr)
            return 1
    return 0


def newest():
    wheels = (ROOT / "target" / "wheel").glob(f"lockstep_course-*_{platform.machine()}.whl")
    return max(wheels, key=lambda wheel: wheel.stat().st_mtime, default=None)


def pytorch():
    """The first Python with PyTorch: its program, where its packages are, and PyTorch's version."""
    chosen = os.environ.get("LOCKSTEP_PYTHON")
    # As libtorch_of in scripts/lib/arch.sh.
    machine = platform.machine()
    libtorch = ROOT / ".libtorch" if machine == "x86_64" else ROOT / ".libtorch" / machine
    own = str(libtorch / "python" / "bin" / "python")
    for python in [chosen] if chosen else [own, "python3"]:
        if shutil.which(python) is None:
            continue
        asked = subprocess.run([python, "-c", PACKAGES], capture_output=True, text=True, timeout=DEADLINE)
        if asked.returncode == 0:
            return python, *json.loads(asked.stdout)
    return None


class Environment:
    """A new environment, and the seconds of what was called in it."""

    def __init__(self, folder, python, packages, version):
        self.bin, self.work, self.took = folder / "new" / "bin", folder / "work", {}
        subprocess.run([python, "-m", "venv", folder / "new"], check=True, timeout=DEADLINE)
        site = folder / "new" / "lib" / f"python{version}" / "site-packages"
        # As Python's own folder, whose .pth files count: that of set-up says how to load a PyTorch without CUDA's libraries.
        (site / "pytorch.pth").write_text(f"import site; site.addsitedir({packages!r})\n")
        self.work.mkdir()
        keep = {name: value for name, value in os.environ.items() if not name.startswith(("LOCKSTEP_", "PYTHON", "VIRTUAL_ENV"))}
        self.environ = {**keep, "PATH": f"{self.bin}:{keep.get('PATH', '')}", "LC_ALL": "C.UTF-8", "COLUMNS": "100"}

    def call(self, name, words, code=0, says=(), folder=None):
        """Runs a command of the environment, which must end with this code and print these texts."""
        begin = time.monotonic()
        words = [self.bin / words[0], *words[1:]]
        ran = subprocess.run(words, cwd=folder or self.work, env=self.environ, timeout=DEADLINE, capture_output=True, text=True)
        self.took[name] = time.monotonic() - begin
        printed = ran.stdout + ran.stderr
        shown = " ".join(map(str, ["lockstep", *words[1:]] if words[0].name == "lockstep" else words))
        if ran.returncode != code:
            raise Fault(f"`{shown}` ended with {ran.returncode}, not {code}:\n{printed}")
        if missing := [text for text in says if text not in printed]:
            raise Fault(f"`{shown}` does not say {missing}:\n{printed}")
        return printed


def check(folder, wheel, python, packages, torch, version):
    new = Environment(folder, python, packages, version)
    new.call("pip install", ["pip", "install", "--no-index", "--no-deps", "--quiet", "--disable-pip-version-check", wheel])
    new.call("version", ["lockstep", "--version"], says=["lockstep "])
    (new.work / "worker.py").write_text(WORKER)
    new.call("run", ["lockstep", "run", "--standalone", "--nproc-per-node=2", "worker.py"], says=["rank 0 of 2", "rank 1 of 2"])
    first_verdict(new)
    others(new)
    new.call("tour", ["lockstep", "tour", "--samples", "512", "--epochs", "3"], says=["PyTorch " + torch, "undisturbed run", "8 passed; "])
    new.call("tour --elastic", ["lockstep", "tour", "--elastic"], 2, ["its Python program", "has no virtual ranks"])
    steps = ["pip install", "init", "untouched", "wrong", "right", "tour"]
    print(f"check-wheel: {wheel.name} with PyTorch {torch}: in order")
    print("check-wheel: " + ", ".join(f"{name} {new.took[name]:.1f} s" for name in steps))
    until = sum(new.took[name] for name in ["pip install", "init", "untouched"])
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    print(f"check-wheel: {until:.1f} s to the first verdict, {new.took['wrong']:.1f} s from an edit to its verdict; load {load:.1f} a core")


def first_verdict(new):
    new.call("init", ["lockstep", "init", "mine"], says=["lockstep grade 05 mean"])
    mine = new.work / "mine"
    task = mine / "tasks" / "05_collectives" / "mean.py"
    grade = ["lockstep", "grade", "05", "mean"]
    new.call("untouched", grade, 1, ["not started", "NotImplementedError"], mine)
    given = task.read_text()
    body = re.search(r"^    (#.*\n    )*raise NotImplementedError\(.*\)\n", given, re.M)
    if body is None:
        raise Fault(f"{task} has nothing to replace:\n{given}")
    begin, end = body.span()
    task.write_text(given[:begin] + WRONG + given[end:])
    new.call("wrong", grade, 1, ["✗ task 1", "nothing was reduced", "lockstep book 05-collectives", "lockstep hint 05 mean\n"], mine)
    new.call("solution before", ["lockstep", "solution", "05", "mean"], 2, ["is not done yet"], mine)
    task.write_text(given[:begin] + RIGHT + given[end:])
    new.call("right", grade, 0, ["✓ task 1", "transpose: tasks/05_collectives/transpose.py"], mine)
    new.call("solution", ["lockstep", "solution", "05", "mean"], says=["def mean("], folder=mine)
    new.call("progress", ["lockstep", "progress", "05"], says=["✓", "next: "], folder=mine)
    new.call("reset", ["lockstep", "reset", "05", "mean"], says=["restored tasks/05_collectives/mean.py"], folder=mine)
    if task.read_text() != given or not any((mine / "backups").rglob("mean.py")):
        raise Fault("reset has not restored the task, or has kept no copy")
    new.call("init again", ["lockstep", "init", "mine"], says=["nothing was changed"])


def others(new):
    new.call("hint", ["lockstep", "hint", "05", "mean"], says=["mean: "])
    new.call("no folder", ["lockstep", "grade", "05"], 2, ["lockstep init"])
    new.call("no checkout", ["lockstep", "course", "check"], 2, ["needs a checkout", "scripts/run.sh"])
    new.call("render", ["lockstep", "render", "--help"], says=["Usage"])
    new.call("book", ["lockstep", "book", "05", "--print"], says=["05-collectives.html"])
    (new.work / "scenario.toml").write_text(SCENARIO.replace("WORKER", str(new.work / "killed.py")))
    (new.work / "killed.py").write_text(KILLED.replace("PYTHON", str(new.bin / "python")))
    (new.work / "killed.py").chmod(0o755)
    new.call("inject", ["lockstep", "inject", "scenario.toml"], says=["1 passed"])


# A scenario with a program of Python, killed at a line that it prints; after its restart it ends, and leaves one weight.
SCENARIO = """name = "killed-at-a-line"
title = "A worker of Python is killed"
shows = "a program without PyTorch is restarted, and its weights are compared"

[run]
program = "WORKER"
args = ["{weights}"]

[[fault]]
who = { rank = 1 }
when = { log-line = "ready" }
what = "kill"

[expect]
restarts = 1
root-cause = 1
"""
KILLED = """#!PYTHON
import json, os, pathlib, struct, sys, time
print("ready", flush=True)
time.sleep(5 if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" else 0)
head = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
file = pathlib.Path(sys.argv[1], f"rank-{os.environ['RANK']}.safetensors")
file.write_bytes(struct.pack("<Q", len(head)) + head + struct.pack("<f", 1.5))
"""

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
