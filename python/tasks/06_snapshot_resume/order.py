"""Task 3: an order that needs no saving. Spot the bug.

Each epoch visits the samples in a different random order. A run that resumes in epoch 3 must use the same order there as a run that began
with epoch 0: it depends only on the seed and the epoch. Every seed, 0 too, and every epoch gives another order.
"""

import random


def order(seed: int, samples: int, epochs: range) -> list[list[int]]:
    """Returns the order of `samples` samples for each of the epochs that this process trains."""
    generator = random.Random(seed)
    return [shuffled(samples, generator) for _ in epochs]


def shuffled(samples: int, generator: random.Random) -> list[int]:
    """Returns the numbers below `samples` in random order."""
    order = list(range(samples))
    generator.shuffle(order)
    return order
