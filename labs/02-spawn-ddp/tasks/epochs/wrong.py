"""Answers to `epochs`: wrong ones, and unusual right ones."""

import random

from lockstep_exercise import edit
from lockstep_exercise.lab_02 import Sampler


# The given program: never sets the epoch.
@edit("sampler.set_epoch(epoch)", "pass")
def forgotten(): ...


# Sets the epoch after the order was drawn.
def one_late(sampler: Sampler, epochs: range) -> list[list[int]]:
    visited = []
    for epoch in epochs:
        visited.append(sampler.indices())
        sampler.set_epoch(epoch)
    return visited


# Sets the epoch on rank 0 only.
@edit("sampler.set_epoch(epoch)", "sampler.set_epoch(epoch if sampler.rank == 0 else 0)")
def on_rank_0(): ...


# Counts epochs from 0 in each process, so that a run that resumes begins again.
@edit("sampler.set_epoch(epoch)", "sampler.set_epoch(len(visited))")
def from_zero(): ...


# Draws from Python's generator, which each rank has seeded differently.
def unseeded(sampler: Sampler, epochs: range) -> list[list[int]]:
    visited = []
    for _ in epochs:
        order = list(range(sampler.samples))
        random.shuffle(order)
        visited.append(order[sampler.rank :: sampler.world_size])
    return visited


# Keeps one list, and shuffles it again in each epoch: all epochs are the same object.
def one_list(sampler: Sampler, epochs: range) -> list[list[int]]:
    order = list(range(sampler.samples))[sampler.rank :: sampler.world_size]
    visited = []
    for epoch in epochs:
        random.Random(f"{sampler.seed}, {epoch}").shuffle(order)
        visited.append(order)
    return visited


# Takes the share first, and shuffles that.
def share_first(sampler: Sampler, epochs: range) -> list[list[int]]:
    visited = []
    for epoch in epochs:
        share = list(range(sampler.rank, sampler.samples, sampler.world_size))
        random.Random(f"{sampler.seed}, {epoch}").shuffle(share)
        visited.append(share)
    return visited


# Each rank has its own seed.
@edit("sampler.set_epoch(epoch)", "sampler.seed += sampler.rank; sampler.set_epoch(epoch)")
def own_seed(): ...


# Returns what `shuffle` returns.
def value_of_shuffle(sampler: Sampler, epochs: range) -> list[list[int]]:
    return [random.Random(epoch).shuffle(list(range(sampler.samples))) for epoch in epochs]


# Right: in a comprehension, with a generator of its own for each epoch.
def keyed(sampler: Sampler, epochs: range) -> list[list[int]]:
    def order(epoch: int) -> list[int]:
        return random.Random(f"{sampler.seed} {epoch}").sample(range(sampler.samples), sampler.samples)

    return [order(epoch)[sampler.rank :: sampler.world_size] for epoch in epochs]
