"""Answers to `ring_all_reduce`: wrong ones, and unusual right ones."""

import torch

from lockstep_exercise import edit
from lockstep_exercise.lab_05 import Ring

GATHER = """    for step in range(size - 1):
        arrived = ring.exchange(chunks[(me + 1 - step) % size])
        chunks[(me - step) % size].copy_(arrived)
"""


# Only the first half.
@edit(GATHER, "")
def half(): ...


# Puts what arrives into the list of chunks, in place of the view.
@edit("chunks[(me - step) % size].copy_(arrived)", "chunks[(me - step) % size] = arrived")
def rebinds(): ...


# Adds into a new tensor, which takes the view's place in the list.
@edit("chunks[(me - step - 1) % size] += arrived", "chunks[(me - step - 1) % size] = chunks[(me - step - 1) % size] + arrived")
def adds_out_of_place(): ...


# Drops the sums.
@edit("chunks[(me - step - 1) % size] += arrived", "chunks[(me - step - 1) % size].add(arrived)")
def drops_the_sums(): ...


# Adds in the second half, too.
@edit("chunks[(me - step) % size].copy_(arrived)", "chunks[(me - step) % size] += arrived")
def adds_twice(): ...


# Begins the second half with the same chunk as the first.
@edit("chunks[(me + 1 - step) % size]", "chunks[(me - step) % size]")
@edit("chunks[(me - step) % size].copy_(arrived)", "chunks[(me - step - 1) % size].copy_(arrived)")
def begins_again(): ...


# Makes the chunks with `chunk`, which may make fewer.
@edit("tensor.tensor_split(size)", "tensor.chunk(size)")
def chunk(): ...


# Sends whole tensors around.
def whole(ring: Ring, tensor: torch.Tensor) -> None:
    passed = tensor.clone()
    for _ in range(ring.size - 1):
        passed = ring.exchange(passed)
        tensor += passed


# Takes a step too many in each half, which brings nothing new.
@edit(GATHER, GATHER.replace("size - 1)", "size)"))
def all_around(): ...


# Takes a step too many in the first half, which only a single rank sees.
@edit("size - 1):\n        arrived = ring.exchange(chunks[(me - step) % size])", "size):\n        arrived = ring.exchange(chunks[(me - step) % size])")
def size_steps(): ...


# Numbers the chunks the other way round, so that lengths do not fit.
@edit("chunks[(me - step - 1) % size] += arrived", "chunks[(me + step + 1) % size] += arrived")
def other_way(): ...


# Right: with one loop for both halves.
def one_loop(ring: Ring, tensor: torch.Tensor) -> None:
    size, chunks = ring.size, tensor.tensor_split(ring.size)
    for step in range(2 * size - 2):
        arrived = ring.exchange(chunks[(ring.rank - step) % size])
        chunk = chunks[(ring.rank - step - 1) % size]
        chunk.copy_(chunk + arrived if step < size - 1 else arrived)
