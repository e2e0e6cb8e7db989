#!/usr/bin/env python3
"""Tests `lockstep bench predict`: steps of lab 11 on machines of `lockstep cluster` whose links have a set rate, and what the model says
of them before. Then the same on links that delay each frame.

Measured first: a step of one rank alone, and all-reduces on two ranks, through whose times the lab fits α and β. The prediction for two
ranks and more follows from these alone. It is to hold where communication sets the pace,
and where the link keeps its rate: at high rates the processors, which carry every packet, are slower than the link.

Needs root, iproute2, and a built tree (`cargo build`).
"""

import argparse
import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILT = ROOT / "target/debug"
NAME = "predicted"
STEPS = 12  # and 2 that warm up
BATCH = 32
LIMIT = 15  # percent, where communication takes at least RULES times as long as compute
RULES = 5
KEEPS = 0.8  # of its rate is what a link carries at least; otherwise something else is slower
SMALL = 64
PORT = 29500
DELAY = ROOT / "scripts/bench/delay.py"


def main():
    args = parse_args()
    lacks = [name for name in ("ip", "tc") if not shutil.which(name)] + (["root"] if os.geteuid() else [])
    if lacks:
        return print(f"not verified here: the prediction's test needs {', '.join(lacks)}")
    cluster("up", "--nodes", str(max(args.ranks)), "--no-slurm")
    try:
        rows = [*at_rates(args), *with_delays(args)]
    finally:
        cluster("down")
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
    for row in rows:
        print(f"| {' | '.join(row.cells())} |")
    ruled = [row for row in rows if row.rules() == "the link"]
    wrong = [row for row in ruled if abs(row.off()) > LIMIT]
    print(f"\nthe link sets the pace in {len(ruled)} of {len(rows)} rows; {len(wrong)} of them off by more than {LIMIT} %")
    sys.exit(1 if wrong else 0)


def parse_args():
    words = lambda text: [word for word in text.split(",") if word]
    numbers = lambda text: [int(word) for word in words(text)]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=numbers, default=[2, 3, 4], help="a list; each rank is a machine of one process")
    parser.add_argument("--rates", type=words, default=["50mbit", "100mbit", "1gbit"], help="a list")
    parser.add_argument("--delays", type=numbers, default=[20], help="milliseconds of each frame on its way to the bridge, and from it, without a rate: a list")
    parser.add_argument("--widths", type=numbers, default=[256, 512], help="units of the hidden layers: a list")
    return parser.parse_args()


def at_rates(args):
    for rate in args.rates:
        for node in nodes(args):
            slow(node, rate)
        yield from measure(args.ranks, args.widths, rate, "--links=262144,4194304", megabytes(rate))


def with_delays(args):
    """A small model, since the program that delays carries few packets. The shortest all-reduces come first and are many: TCP's window opens
    meanwhile, and stays open."""
    for node in nodes(args) if args.rates and args.delays else []:
        cluster("exec", node, "--", "tc", "qdisc", "del", "dev", "eth0", "root")
    for delay in args.delays:
        with delayed(nodes(args), delay):
            yield from measure(args.ranks, [SMALL], f"{delay} ms", "--links=16384,262144", 0)


def nodes(args):
    return [f"n{node}" for node in range(1, max(args.ranks) + 1)]


def measure(counts, widths, link, sizes, at_least):
    """A row for each model and number of ranks. `sizes` are those of the all-reduces that are timed: about those that buckets have."""
    alpha, bandwidth = line(train(2, widths[0], sizes))
    for width in widths:
        alone = costs(train(1, width))
        for ranks in counts:
            step, waits = predicted(alone, width, ranks, alpha, bandwidth)
            measured = median_step(train(ranks, width))
            print(f"{link}, width {width}, {ranks} ranks: {step:.1f} ms predicted, {measured:.1f} measured", file=sys.stderr)
            yield Row(link, alpha, bandwidth, at_least, width, ranks, step, waits, alone["all"], measured)


HEAD = ["link", "α of a message, µs", "1/β, MB/s", "gradients, MB", "ranks", "compute, ms", "predicted, ms", "measured, ms", "off by", "pace set by"]


class Row:
    def __init__(self, link, alpha, bandwidth, at_least, width, ranks, step, waits, compute, measured):
        self.link, self.alpha, self.bandwidth, self.width, self.ranks = link, alpha, bandwidth, width, ranks
        self.at_least, self.step, self.waits, self.compute, self.measured = at_least, step, waits, compute, measured

    def rules(self):
        if self.bandwidth < KEEPS * self.at_least:
            return "processors"
        return "the link" if self.waits >= RULES * self.compute else "both"

    def off(self):
        return 100 * (self.step / self.measured - 1)

    def cells(self):
        times = [f"{time:.1f}" for time in (self.compute, self.step, self.measured)]
        gradients = f"{4e-6 * parameters(self.width):.2f}"
        return [self.link, f"{self.alpha:.0f}", f"{self.bandwidth:.1f}", gradients, str(self.ranks), *times, f"{self.off():+.0f}\u00a0%", self.rules()]


def megabytes(rate):
    """A rate of tc in 10^6 bytes a second."""
    number, unit = re.fullmatch(r"(\d+)(kbit|mbit|gbit)", rate).groups()
    return int(number) * {"kbit": 1e-3, "mbit": 1, "gbit": 1e3}[unit] / 8


def parameters(width):
    """Of the lab's network: two hidden layers."""
    return 784 * width + width + width * width + width + 10 * width + 10


# ---- running


def slow(node, rate):
    """Limits what a machine sends. Other than `lockstep cluster fault slow`, nothing passes at once after a pause and nothing is dropped:
    a token bucket that lets a quarter of a megabyte pass makes all short messages look fast."""
    limit = ["rate", rate, "burst", "16kb", "limit", "64mb"]
    cluster("exec", node, "--", "tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", *limit)


def cluster(*words):
    return run([BUILT / "lockstep", "cluster", "--name", NAME, *words])


@contextlib.contextmanager
def delayed(nodes, milliseconds):
    """Puts a program that delays frames between each machine's port and the bridge."""
    on_head = lambda *words: cluster("exec", "ctl", "--", *words)
    pairs = []
    for node in nodes:
        cluster("exec", node, "--", sys.executable, DELAY, "plain", "eth0")
        # Otherwise TCP begins slowly again after each pause, and a message takes as many delays as it has doublings.
        cluster("exec", node, "--", "sh", "-c", "echo 0 > /proc/sys/net/ipv4/tcp_slow_start_after_idle")
        port, near, far = f"v{node}", f"near-{node}", f"far-{node}"
        on_head("ip", "link", "add", near, "type", "veth", "peer", "name", far)
        on_head("ip", "link", "set", port, "nomaster")
        on_head("ip", "link", "set", far, "master", "br0")
        for end in (near, far):
            on_head("ip", "link", "set", end, "up")
        pairs.append(f"{port},{near}")
    words = [BUILT / "lockstep", "cluster", "--name", NAME, "exec", "ctl", "--", sys.executable, DELAY, milliseconds, *pairs]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
    with subprocess.Popen([str(word) for word in words], **pipes) as program:
        if program.stdout.readline() != "passing\n":
            sys.exit("the program that delays frames has not begun")
        yield
        program.stdin.close()
    for node in nodes:
        on_head("ip", "link", "del", f"near-{node}")
        on_head("ip", "link", "set", f"v{node}", "master", "br0")


def run(command):
    done = subprocess.run([str(word) for word in command], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(str(word) for word in command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def train(ranks, width, *flags):
    """What rank 0 prints of a training with a rank on each of the first machines."""
    launch = [BUILT / "lockstep", "run", f"--nnodes={ranks}", "--nproc-per-node=1", "--master-addr=n1", f"--master-port={PORT}"]
    lab = [BUILT / "lab-11-scaling", f"--width={width}", f"--samples={BATCH * ranks * (STEPS + 2)}", f"--batch-size={BATCH}", "--epochs=1", "--device=cpu"]
    words = lambda node: [BUILT / "lockstep", "cluster", "--name", NAME, "exec", f"n{node + 1}", "--", *launch, f"--node-rank={node}", *lab, *flags]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": ROOT}
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
    jobs = [subprocess.Popen([str(word) for word in words(node)], env=environment, **pipes) for node in range(ranks)]
    texts = [job.communicate()[0] for job in jobs]
    for job, text in zip(jobs, texts):
        if job.returncode:
            sys.exit(f"a training on {ranks} machines ended with {job.returncode}:\n{text}")
    return texts[0]


def costs(text):
    """Milliseconds of each part of a step."""
    return {name: float(time) for name, time in re.findall(r"([a-z]+) +([\d.]+) +\d+ %", text)}


def median_step(text):
    """Milliseconds, as the all-reduces' times are medians: a busy machine makes means longer."""
    return float(re.search(r"the median step takes ([\d.]+) ms", text)[1])


def line(text):
    """α of a message in µs, and the bandwidth of a link in MB/s. An all-reduce on 2 ranks is 2 messages, of half of its bytes each."""
    found = re.search(r"α = ([\d.]+) µs, 1/β = ([\d.]+) MB/s", text)
    if not found:
        sys.exit(f"no α and β in what the lab prints:\n{text}")
    return float(found[1]) / 2, float(found[2])


def predicted(alone, width, ranks, alpha, bandwidth):
    """Milliseconds of the step, and of it without compute, by `lockstep bench predict`."""
    text = f"""
[step]
forward_ms = {max(alone["forward"], 1e-3)}
backward_ms = {max(alone["backward"], 1e-3)}
optimizer_ms = {alone["all"] - alone["forward"] - alone["backward"]}
[model]
parameters = {parameters(width)}
bytes_of_a_gradient = 4
bucket_mib = 25
shard_units = 1
accumulate = 1
[node]
ranks = 1
latency_us = 0
bandwidth_gb_s = 1000
[network]
latency_us = {alpha}
bandwidth_gb_s = {bandwidth / 1e3}
"""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(text)
        file.flush()
        shown = run([BUILT / "lockstep", "bench", "predict", file.name, "--nodes", str(ranks)])
    row = re.search(rf"^ *{ranks} +{ranks} +([\d.,]+ \S*s) +([\d.,]+ \S*s|0) ", shown, flags=re.M)
    if not row:
        sys.exit(f"no row for {ranks} ranks in what `lockstep bench predict` prints:\n{shown}")
    return milliseconds(row[1]), milliseconds(row[2])


def milliseconds(text):
    number, _, unit = text.replace(",", "").partition(" ")
    return float(number) * {"": 0, "s": 1e3, "ms": 1, "µs": 1e-3}[unit]


if __name__ == "__main__":
    main()
