"""Task 5: an all-reduce around a ring.

The ranks form a ring, and each sends only to the next one. The tensor is divided into one chunk per rank. In the first half, every chunk
goes around the ring once and collects its sum: a reduce-scatter. In the second half, the finished chunks go around: an all-gather. In each
step every rank sends one chunk, so in total it sends less than twice the tensor's size, whatever the number of ranks.
"""

import torch

from lockstep_exercise.lab_05 import Ring


def ring_all_reduce(ring: Ring, tensor: torch.Tensor) -> None:
    """Replaces `tensor`, which has one dimension, by its sum over all ranks, in place."""
    me, size = ring.rank, ring.size
    # The chunks are views: a write to a chunk is a write to the tensor. If the length does not divide evenly, the first chunks are longer by
    # one element. If the tensor has fewer elements than there are ranks, the last chunks are empty.
    chunks = list(tensor.tensor_split(size))
    # <answer>
    #~ # `ring.exchange(chunk)` sends a chunk to the next rank and returns the one that the previous rank sends in this step.
    #~ # `chunks[c] += arrived` adds to a chunk, `chunks[c].copy_(arrived)` replaces it.
    #~ raise NotImplementedError("size - 1 steps in which chunks collect their sums, then size - 1 steps in which the sums go around")
    for step in range(size - 1):
        arrived = ring.exchange(chunks[(me - step) % size])
        chunks[(me - step - 1) % size] += arrived
    # Now this rank has finished chunk me + 1.
    for step in range(size - 1):
        arrived = ring.exchange(chunks[(me + 1 - step) % size])
        chunks[(me - step) % size].copy_(arrived)
    # </answer>
