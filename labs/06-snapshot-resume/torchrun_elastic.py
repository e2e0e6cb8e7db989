"""What PyTorch's elastic run makes of a node that is lost for good: torchrun_elastic.py --data DIR

Trains `snapshot_resume.py` under torchrun on four nodes of one worker each, which are all on this machine: twice undisturbed, and once with
the loss of a node after epoch 0, after which torchrun goes on with three. Compares the final weights. Takes some minutes, since agents
wait for a lost one, as long as PyTorch's defaults say.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import snapshot_resume as lab_06
import torch
import torch.distributed as dist

NODES = 4
BATCH = 32
# How long a run may take, in seconds.
DEADLINE = 900
# Where a worker says who it is.
WHO = "TORCHRUN_ELASTIC_WHO"


def work():
    """A worker: lab 06's training. Records which processes it and its agent are, and how many workers there are now."""
    device = lab_06.join()
    rank, world = dist.get_rank(), dist.get_world_size()
    Path(os.environ[WHO], str(rank)).write_text(f"{os.getppid()} {os.getpid()}")
    if rank == 0:
        print(f"World size: {world}", flush=True)
    lab_06.train(lab_06.arguments(), device)
    lab_06.leave()


def train(folder, args, lose):
    """Trains under torchrun. Returns what was printed, and the final weights."""
    folder.mkdir()
    snapshot, printed = folder / "snapshot.pt", folder / "printed"
    # The store in which the agents meet. Its port is the kernel's choice.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    nodes = f"--nnodes={NODES - 1}:{NODES}" if lose else f"--nnodes={NODES}"
    command = [
        sys.executable, "-m", "torch.distributed.run", nodes, "--nproc-per-node=1", "--max-restarts=5", "--rdzv-backend=c10d",
        f"--rdzv-endpoint=127.0.0.1:{store.port}", "--rdzv-conf=is_host=0", __file__, f"--data={args.data}", f"--snapshot={snapshot}",
        f"--epochs={args.epochs}", f"--batch-size={BATCH}",
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", WHO: str(folder)}
    # A store for each round. By default workers meet in the agents' store, in which keys of the round before are left: those that are
    # started again may then wait in `init_process_group` forever (pytorch/pytorch issue 135712), as they did here.
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    with printed.open("wb") as file:
        agents = [subprocess.Popen(command, env=environment, stdout=file, stderr=file) for _ in range(NODES)]
        try:
            end = time.monotonic() + DEADLINE
            if lose:
                until(snapshot.exists, agents, end)
                # The agent first, which would start its worker again.
                for pid in (folder / str(NODES - 1)).read_text().split():
                    os.kill(int(pid), signal.SIGKILL)
            until(lambda: all(agent.poll() is not None for agent in agents), agents, end)
        finally:
            stop(agents, folder)
    codes = sorted(agent.returncode for agent in agents)
    if codes != ([-signal.SIGKILL] if lose else [0]) + [0] * (NODES - 1):
        sys.exit(f"{printed.read_text()}the agents ended with {codes}")
    return printed.read_text(), torch.load(snapshot, weights_only=True)["model"]


def until(done, agents, end):
    """Waits, as long as agents live and there is time."""
    while not done():
        if time.monotonic() > end or all(agent.poll() is not None for agent in agents):
            return
        time.sleep(0.02)


def stop(agents, folder):
    """No agent and no worker outlives this program."""
    for agent in agents:
        if agent.poll() is None:
            agent.send_signal(signal.SIGTERM)
    for agent in agents:
        try:
            agent.wait(30)
        except subprocess.TimeoutExpired:
            agent.kill()
            agent.wait()
    for rank in range(NODES):
        if (folder / str(rank)).exists():
            pid = (folder / str(rank)).read_text().split()[1]
            if Path(f"/proc/{pid}/cmdline").exists() and __file__.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(int(pid), signal.SIGKILL)


def epochs(printed, samples):
    """What each epoch was trained with, and its result."""
    world = 0
    for line in printed.splitlines():
        if found := re.search(r"World size: (\d+)", line):
            world = int(found[1])
        if found := re.search(r"(Epoch: \d+), (Accuracy: .*)", line):
            steps = -(-(-(-samples // world)) // BATCH)
            print(f"  {found[1]} on {world} workers, {steps} steps of {world * BATCH} samples. {found[2]}", flush=True)


def compared(first, second):
    """How many values have other bits, the largest difference, and the difference of all as a part of them."""
    first, second = (torch.cat([value.flatten() for value in weights.values()]) for weights in (first, second))
    apart = (first - second).abs()
    differ = int((first.view(torch.int32) != second.view(torch.int32)).sum())
    if not differ:
        return f"the same bits, {len(first):,} weights"
    part = (apart.norm() / first.norm()).item()
    return f"{differ:,} of {len(first):,} weights have other bits; they differ by up to {apart.max():.2g}, all in all by {part:.1%}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True, help="a folder with MNIST's four files")
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    samples = len(lab_06.mnist(args.data, "train"))
    print(f"torchrun of PyTorch {torch.__version__.partition('+')[0]}, Gloo, {NODES} nodes of 1 worker", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        runs = []
        for name in ("undisturbed", "undisturbed again", "one node is lost for good after epoch 0"):
            printed, weights = train(Path(temporary, str(len(runs))), args, lose="lost" in name)
            print(name, flush=True)
            epochs(printed, samples)
            runs.append(weights)
        print(f"undisturbed and undisturbed again: {compared(runs[0], runs[1])}")
        print(f"undisturbed and one node lost: {compared(runs[0], runs[2])}")
        print(f"lines in which torchrun mentions the batch: {sum('batch' in line.lower() for line in of_torchrun(printed))}")


def of_torchrun(printed):
    """Its own messages, without those of the workers."""
    return [line for line in printed.splitlines() if "torch/distributed" in line or "elastic" in line]


if __name__ == "__main__":
    work() if WHO in os.environ else main()
