"""Answers to `prefetch`: wrong ones, and unusual right ones."""

from collections.abc import Callable

import torch
import torch.distributed as dist

from lockstep_exercise import edit


# The given program: receives the next batch into the memory of this one.
@edit("here, there = there, here", "here = there")
def as_given(): ...


# Has two names for one tensor.
@edit("torch.zeros(length, dtype=torch.float64), torch.zeros(length, dtype=torch.float64), []", "*[torch.zeros(length, dtype=torch.float64)] * 2, []")
def two_names(): ...


# Copies the batch after the next receive was started.
@edit("here, there = there, here", "here = there")
@edit("compute(here)", "compute(here.clone())")
def copies_late(): ...


# Does not wait for the last batch.
@edit("coming.wait()", "coming.wait() if len(results) + 1 < batches else None")
def last_without_a_wait(): ...


# Receives without overlap.
@edit("        coming = dist.irecv(there, 0) if len(results) + 1 < batches else None\n        results.append(compute(here))\n", "        results.append(compute(here))\n        coming = dist.irecv(there, 0) if len(results) < batches else None\n")
def in_turn(): ...


# Starts a receive more than there are batches.
@edit("dist.irecv(there, 0) if len(results) + 1 < batches else None", "dist.irecv(there, 0)")
@edit("while coming is not None:", "while len(results) < batches:")
def one_more(): ...


# Receives all batches first.
def all_first(batches: int, length: int, compute: Callable[[torch.Tensor], float]) -> list[float]:
    everything = [torch.zeros(length, dtype=torch.float64) for _ in range(batches)]
    for batch in everything:
        dist.recv(batch, 0)
    return [compute(batch) for batch in everything]


# Starts all receives at once.
def all_at_once(batches: int, length: int, compute: Callable[[torch.Tensor], float]) -> list[float]:
    everything = [torch.zeros(length, dtype=torch.float64) for _ in range(batches)]
    works = [dist.irecv(batch, 0) for batch in everything]
    results = []
    for work, batch in zip(works, everything, strict=True):
        work.wait()
        results.append(compute(batch))
    return results


# Right: copies each batch before the next receive is started.
@edit("here, there = there, here", "here = there.clone()")
def copies(): ...


# Right: with new memory for each batch.
@edit("coming = dist.irecv(there, 0) if", "there = torch.zeros_like(here)\n        coming = dist.irecv(there, 0) if")
def new_memory(): ...
