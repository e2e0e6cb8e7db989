"""Answers to `order`: wrong ones, and unusual right ones."""

import random

import torch

from lockstep_exercise import edit


# The given program: one generator for all epochs, whose state depends on the first.
def as_given(seed: int, samples: int, epochs: range) -> list[list[int]]:
    generator = random.Random(seed)
    return [generator.sample(range(samples), samples) for _ in epochs]


# The seed alone.
@edit('random.Random(f"{seed}, {epoch}")', "random.Random(seed)")
def seed_alone(): ...


# The epoch alone.
@edit('random.Random(f"{seed}, {epoch}")', "random.Random(epoch)")
def epoch_alone(): ...


# Right: the sum, as in PyTorch's DistributedSampler, although epoch 1 of seed 0 is then epoch 0 of seed 1.
@edit('random.Random(f"{seed}, {epoch}")', "random.Random(seed + epoch)")
def added(): ...


# The product: seed 0 has one order.
@edit('random.Random(f"{seed}, {epoch}")', "random.Random(seed * (epoch + 1))")
def multiplied(): ...


# Counts epochs from the start of this process.
@edit("for epoch in epochs]", "for epoch in range(len(epochs))]")
def from_zero(): ...


# The hash of a text, which each process computes with a key of its own.
@edit('random.Random(f"{seed}, {epoch}")', 'random.Random(hash(f"{seed}, {epoch}"))')
def process_hash(): ...


# No seed.
@edit('random.Random(f"{seed}, {epoch}")', "random.Random()")
def unseeded(): ...


# Right: from PyTorch's generator, with a seed that differs for each pair.
def of_torch(seed: int, samples: int, epochs: range) -> list[list[int]]:
    def one(epoch: int) -> list[int]:
        generator = torch.Generator().manual_seed(hash((seed, epoch)) % 2**63)
        return torch.randperm(samples, generator=generator).tolist()

    return [one(epoch) for epoch in epochs]
