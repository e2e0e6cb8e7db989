"""Compares loading photographs to tensors in Rust with torchvision's DataLoader, alternating, as ratios with spread.

    python3 scripts/bench/pictures.py --python PYTHON

PYTHON needs PyTorch 2.11 and torchvision 0.26. Both sides read the same 640x480 JPEG files, which the Rust side draws first
(quality 90, about 110 kB each), or those of `--folder`, and do AutoAugment, Resize((244, 244)), ToTensor and Normalize in batches of
32, shuffled; Python with ImageFolder on Pillow and persistent workers. As many workers load on both sides, threads here and processes
there; 1 and 2 by default. In each round both sides are restarted; then they take turns of one pass over all files. A round's ratio
is the median over its turns. Before the clock starts both take the mean of the first batch without AutoAugment, which must
agree, or they did not do the same work and there is no result.

CPU time (Linux) is that of all processes of a side, threads that have ended included: it does not count the time in which others have
the cores, so on a busy machine it is the steadier of the two.

With `--driver PORT` this is the Python side.
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
import tempfile
import time

BATCH, SIDE = 32, 244
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Tolerance for the means: JPEG decoders and resizing round differently.
MEAN_TOLERANCE = 2e-3
TICKS = os.sysconf("SC_CLK_TCK")


def main():
    args = parse_args()
    if args.driver:
        return serve(args)
    import against_python as rig

    rust = rig.build(args.cargo, "pictures", "lockstep-vision")
    with tempfile.TemporaryDirectory() as drawn:
        folder = args.folder or draw(rust, drawn, args.photographs)
        count = sum(1 for file in pathlib.Path(folder).rglob("*.jpg"))
        for workers in args.workers:
            compare(rig, rust, folder, count, workers, args)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", help="a Python with PyTorch 2.11 and torchvision")
    parser.add_argument("--cargo", default="cargo", help="the command that builds the Rust side")
    parser.add_argument("--folder", help="a folder with a folder of .jpg photographs per class, instead of drawn ones")
    parser.add_argument("--photographs", type=int, default=192, help="how many are drawn")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3, help="times that both sides are started")
    parser.add_argument("--turns", type=int, default=5, help="passes of each side in a round")
    parser.add_argument("--driver", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not (args.python or args.driver):
        parser.error("give a Python with torchvision: --python PYTHON")
    return args


def draw(rust, folder, count):
    subprocess.run([rust, "--folder", folder, "--draw", str(count)], check=True)
    return str(pathlib.Path(folder, "Train"))


def compare(rig, rust, folder, count, workers, args):
    common = ["--folder", folder, "--workers", str(workers)]
    commands = {"rust": [rust, *common], "torchvision": [args.python, __file__, *common]}
    load = " ".join(f"{value:.2f}" for value in os.getloadavg())
    print(f"\n{count} photographs, {workers} workers on {os.cpu_count()} cores; load average {load}", flush=True)
    rounds = [run_round(rig, commands, args.turns) for _ in range(args.rounds)]
    check_means([side for sides in rounds for side in sides.values()])
    for which, what in enumerate(["photographs a second", "photographs a second of CPU time"]):
        print(f"  {what}, median (least to greatest) over the rounds")
        for name in commands:
            rates = [count / statistics.median(sides[name].passes[which]) for sides in rounds]
            print(f"    {name}: {rig.spread(rates, 0)}")
        ratios = [
            statistics.median(theirs / ours for ours, theirs in zip(sides["rust"].passes[which], sides["torchvision"].passes[which]))
            for sides in rounds
        ]
        print(f"    rust is {rig.spread(ratios, 2)} times as fast", flush=True)


def run_round(rig, commands, turns):
    """The sides after their turns, each with the seconds and CPU seconds of its passes."""
    with contextlib.ExitStack() as stack:
        sides = {name: stack.enter_context(rig.Side(command)) for name, command in commands.items()}
        for side in sides.values():
            side.passes = [], []
        order = list(sides.values())
        for _ in range(turns):
            for side in order:
                begun = cpu_seconds(side.process.pid)
                side.take_turn(1)
                side.passes[0].append(side.turns[-1] / 1e3)
                side.passes[1].append(cpu_seconds(side.process.pid) - begun)
            order.append(order.pop(0))
    return sides


def cpu_seconds(pid):
    """CPU time of a process and its living descendants so far, including threads that have ended."""
    with contextlib.suppress(OSError):  # a process that has just ended
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return (int(fields[11]) + int(fields[12])) / TICKS + sum(map(cpu_seconds, children))
    return 0.0


def check_means(sides):
    apart = max(side.loss for side in sides) - min(side.loss for side in sides)
    if not apart <= MEAN_TOLERANCE:
        sys.exit(f"no result: the means of the first batch are {apart:.1e} apart, so the sides did not do the same work")


def serve(args):
    """The Python side: makes as many passes as each line of the driver requests."""
    import torch
    from torchvision import datasets, transforms

    torch.set_num_threads(1)
    ends = [transforms.Resize((SIDE, SIDE)), transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    plain = datasets.ImageFolder(args.folder, transforms.Compose(ends))
    mean = torch.stack([plain[i][0] for i in range(min(BATCH, len(plain)))]).abs().double().mean().item()
    pictures = datasets.ImageFolder(args.folder, transforms.Compose([transforms.AutoAugment(), *ends]))
    loader = torch.utils.data.DataLoader(
        pictures, batch_size=BATCH, shuffle=True, num_workers=args.workers[0], persistent_workers=True
    )
    one_pass(loader)  # files, code and workers are warm from here on
    with socket.create_connection(("127.0.0.1", args.driver)) as connection, connection.makefile("rw") as lines:
        for line in lines:
            seconds = [one_pass(loader) for _ in range(int(line))]
            print(json.dumps({"seconds": seconds, "loss": mean}), file=lines, flush=True)


def one_pass(loader):
    begun = time.perf_counter()
    seen = sum(len(targets) for _, targets in loader)
    assert seen == len(loader.dataset)
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
