"""Lab 05 in Python: torchrun --standalone --nproc-per-node=4 collectives.py, or the same with lockstep run.

Every rank starts with the numbers of the Rust program, 10 r + 1, 10 r + 2, …, and ends with the same results.
"""

import argparse
import json
import time
from pathlib import Path

import torch
import torch.distributed as dist

ROOT = 0


def start(n):
    first = 10 * dist.get_rank() + 1
    return torch.arange(first, first + n)


def places(n):
    return [torch.zeros(n, dtype=torch.int64) for _ in range(dist.get_world_size())]


# ANCHOR: collectives
def collectives(held):
    rank, size = dist.get_rank(), dist.get_world_size()

    tensor = start(4)
    dist.broadcast(tensor, src=ROOT)
    held["broadcast"] = tensor

    output = torch.zeros(1, dtype=torch.int64)
    dist.scatter(output, list(start(size).split(1)) if rank == ROOT else None, src=ROOT)
    held["scatter"] = output

    gathered = places(2) if rank == ROOT else None
    dist.gather(start(2), gathered, dst=ROOT)
    held["gather"] = gathered or []

    tensor = start(4)
    dist.reduce(tensor, dst=ROOT)
    held["reduce"] = tensor if rank == ROOT else []  # on other ranks the tensor is undefined

    tensor = start(4)
    dist.all_reduce(tensor)
    held["all_reduce"] = tensor

    gathered = places(2)
    dist.all_gather(gathered, start(2))
    held["all_gather"] = gathered

    output = torch.zeros(1, dtype=torch.int64)
    dist.reduce_scatter_tensor(output, start(size))
    held["reduce_scatter"] = output

    output = torch.zeros(size, dtype=torch.int64)
    dist.all_to_all_single(output, start(size))
    held["all_to_all"] = output
# ANCHOR_END: collectives


# ANCHOR: groups
def groups(held):
    """Every rank creates every group, in the same order, and uses its own."""
    rank, size = dist.get_rank(), dist.get_world_size()
    even, odd = (dist.new_group(list(range(first, size, 2))) for first in (0, 1))
    tensor = start(4)
    dist.all_reduce(tensor, group=odd if rank % 2 else even)
    held["groups"] = tensor

    rest = dist.new_group(list(range(1, size)))
    tensor = start(4)
    if rank != 0:
        dist.broadcast(tensor, src=1, group=rest)  # in Python, the source is a rank of the job, not of the group
    held["group_broadcast"] = tensor
# ANCHOR_END: groups


# ANCHOR: ring
def ring(held):
    """All-reduce by hand: a reduce-scatter and an all-gather, each around a ring. A chunk is a view of the tensor."""
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = start(size)
    chunks = tensor.tensor_split(size)

    def exchange(leaves, arriving):
        sending = dist.isend(chunks[leaves % size].clone(), dst=(rank + 1) % size)
        dist.recv(arriving, src=(rank - 1) % size)
        sending.wait()

    for step in range(size - 1):
        arriving = torch.zeros_like(chunks[(rank - step - 1) % size])
        exchange(rank - step, arriving)
        chunks[(rank - step - 1) % size].add_(arriving)
    for step in range(size - 1):
        exchange(rank + 1 - step, chunks[(rank - step) % size])
    held["ring"] = tensor
# ANCHOR_END: ring


def numbers(held):
    return held.tolist() if isinstance(held, torch.Tensor) else [tensor.tolist() for tensor in held]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--results", type=Path, help="a folder in which each rank saves what it holds, as the lab does")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    held = {}
    for lesson in (collectives, groups, ring):
        lesson(held)
    results = {name: numbers(value) for name, value in held.items()}
    for name, value in results.items():
        print(f"[rank {dist.get_rank()}] {name}: {value}", flush=True)
    if args.results:
        args.results.mkdir(parents=True, exist_ok=True)
        (args.results / f"rank-{dist.get_rank()}.json").write_text(json.dumps(results))
    dist.barrier()  # PyTorch 2.11 may hang if a thread of Gloo lets go of a tensor while the group ends,
    time.sleep(0.1)  # for which it needs Python's lock: the last rank to arrive at the barrier leaves it no time
    dist.destroy_process_group()
