"""Compares a training step in Rust with the same step in Python, alternating, as ratios with spread.

    python3 scripts/bench/against_python.py --python PYTHON [--step ddp|resnet]

PYTHON needs PyTorch 2.11, and torchvision for resnet. In each round every side is restarted; then the sides
take turns, a few steps at a time, while the others wait, so that other load on the machine affects all of them. A turn's
time is the median of its steps, a round's ratio the median over its turns. All sides must end with the same loss, or they did not do the same work and
there is no result.

Where the system shows it (Linux), the CPU time of all processes of a side is compared too: it does not count the time in
which others have the cores, so on a busy machine it is the steadier of the two, but it does not see waiting either.
"""

import argparse
import contextlib
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
# For each step: ranks, and by default rounds, turns, steps per turn, and steps that are not timed.
STEPS = {"ddp": (2, 7, 20, 20, 30), "resnet": (1, 5, 12, 5, 3)}
PEERS = {"python, SGD default": [], "python, SGD fused": ["--fused"]}
# Rounding differs between kernels; after some hundred steps the losses agree to about 1e-6.
LOSS_TOLERANCE = 1e-4
# Seconds in which a side must answer after it was started or asked for steps.
DEADLINE = 300


def main():
    args = parse_args()
    common = ["--warmup", str(args.warmup)]
    if args.step == "ddp":
        common += ["--ranks", str(args.ranks)] + ["--bucket-view"] * args.bucket_view
    example = f"{args.step}_step"
    twin = str(pathlib.Path(__file__).with_name(f"{example}.py"))
    sides = {"rust": [build(args.cargo, example), *common]}
    sides |= {name: [args.python, twin, *flags, *common] for name, flags in PEERS.items()}
    print_machine(args)
    rounds = []
    for number in range(args.rounds):
        rounds.append(run_round(sides, args))
        print_round(number, rounds[-1])
    check_losses(rounds)
    print_summary(rounds)
    print_machine(args)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="a Python with PyTorch 2.11")
    parser.add_argument("--cargo", default="cargo", help="the command that builds the Rust side")
    parser.add_argument("--step", choices=STEPS, default="ddp", help="which step: an MLP under DDP, or ResNet-18 alone")
    parser.add_argument("--rounds", type=int, help="times that all sides are started")
    parser.add_argument("--turns", type=int, help="turns of each side in a round")
    parser.add_argument("--steps", type=int, help="timed steps in a turn")
    parser.add_argument("--warmup", type=int, help="steps of each side in a round that are not timed")
    parser.add_argument("--ranks", type=int, help="of the ddp step")
    parser.add_argument("--bucket-view", action="store_true", help="gradient_as_bucket_view on all sides of the ddp step")
    args = parser.parse_args()
    for name, default in zip(["ranks", "rounds", "turns", "steps", "warmup"], STEPS[args.step]):
        if getattr(args, name) is None:
            setattr(args, name, default)
    if args.step == "resnet" and (args.ranks != 1 or args.bucket_view):
        parser.error("the resnet step has one rank and no buckets: --ranks and --bucket-view are for --step ddp")
    return args


def build(cargo, example, package="lockstep"):
    """Builds the Rust side and returns the path of the program."""
    command = [cargo, "build", "-p", package, "--example", example, "--message-format", "json-render-diagnostics"]
    output = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    messages = [json.loads(line) for line in output.splitlines()]
    return next(m["executable"] for m in messages if m.get("executable") and m["target"]["name"] == example)


class Side:
    """A program that waits for requests. Leaving the context ends it."""

    def __init__(self, command):
        self.command, self.turns, self.cpu_turns, self.loss = command, [], [], None

    def __enter__(self):
        one_thread = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        loopback = {"GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo"}
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(DEADLINE)
            command = [*self.command, "--driver", str(server.getsockname()[1])]
            self.process = subprocess.Popen(command, env=os.environ | one_thread | loopback)
            try:
                self.connection = server.accept()[0]
            except BaseException:
                self.process.terminate()
                raise
        self.connection.settimeout(DEADLINE)
        self.lines = self.connection.makefile("rw")
        return self

    def __exit__(self, *_):
        self.lines.close()
        self.connection.close()
        try:
            code = self.process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            code = "none in time, stopped"
        if code != 0:
            print(f"warning: exit code of {' '.join(self.command)}: {code}", file=sys.stderr)

    def take_turn(self, steps):
        begun = cpu_milliseconds(self.process.pid)
        print(steps, file=self.lines, flush=True)
        line = self.lines.readline()
        if not line:
            sys.exit(f"failed to run {' '.join(self.command)}: it ended")
        result = json.loads(line)
        self.turns.append(1e3 * statistics.median(result["seconds"]))
        self.cpu_turns.append((cpu_milliseconds(self.process.pid) - begun) / steps)
        self.loss = result["loss"]


def cpu_milliseconds(pid):
    """CPU time of a process and its descendants so far; 0 if the system does not report it."""
    spent = 0
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            spent += int((task / "schedstat").read_text().split()[0]) / 1e6
            spent += sum(map(cpu_milliseconds, (task / "children").read_text().split()))
    return spent


def run_round(commands, args):
    """The sides after their turns."""
    with contextlib.ExitStack() as stack:
        sides = {name: stack.enter_context(Side(command)) for name, command in commands.items()}
        order = list(sides.values())
        for _ in range(args.turns):
            for side in order:
                side.take_turn(args.steps)
            order.append(order.pop(0))
    return sides


def ratios(sides, peer):
    """The ratios of a round, in time and in CPU time: each turn of Rust against the peer's turn in the same lap."""
    rust, other = sides["rust"], sides[peer]
    pairs = [(rust.turns, other.turns), (rust.cpu_turns, other.cpu_turns)]
    return [statistics.median(a / b if b else float("nan") for a, b in zip(*pair)) for pair in pairs]


def milliseconds(side):
    return [statistics.median(turns) for turns in (side.turns, side.cpu_turns)]


def print_machine(args):
    load = " ".join(f"{value:.2f}" for value in os.getloadavg())
    ranks = f"{args.ranks} rank{'s' * (args.ranks != 1)}"
    print(f"{ranks} on {os.cpu_count()} cores; load average of 1, 5 and 15 minutes: {load}", flush=True)


def print_round(number, sides):
    times = "; ".join(f"{name} {milliseconds(side)[0]:.2f} ms" for name, side in sides.items())
    found = ", ".join(f"{ratios(sides, peer)[0]:.3f}" for peer in PEERS)
    print(f"round {number + 1}: {times}; ratios {found}", flush=True)


def check_losses(rounds):
    losses = [side.loss for sides in rounds for side in sides.values()]
    apart = (max(losses) - min(losses)) / abs(losses[0])
    if not apart <= LOSS_TOLERANCE:
        sys.exit(f"no result: the last losses are {apart:.1e} apart, so the sides did not do the same work")
    print(f"all sides ended with loss {losses[0]:.6f}, the furthest {apart:.1e} apart")


def print_summary(rounds):
    print("\nmedian (least to greatest) over the rounds")
    for which, what in enumerate(["time of a step on rank 0", "CPU time of a step on all ranks"]):
        print(f"  {what}")
        for name in rounds[0]:
            print(f"    {name}: {spread([milliseconds(sides[name])[which] for sides in rounds], 2)} ms")
        for peer in PEERS:
            print(f"    rust / {peer}: {spread([ratios(sides, peer)[which] for sides in rounds], 3)}")


def spread(values, digits):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


if __name__ == "__main__":
    main()
