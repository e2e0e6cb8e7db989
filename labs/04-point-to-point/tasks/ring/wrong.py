"""Answers to `ring`: wrong ones, and unusual right ones."""

import torch
import torch.distributed as dist

from lockstep_exercise import edit


# All ranks send first.
@edit("if me % 2 == 0:", "if True:")
def all_send(): ...


# All ranks receive first.
@edit("if me % 2 == 0:", "if False:")
def all_receive(): ...


# Sends its own tensor in each step.
@edit("everyones[(me + 1 - step) % size], everyones", "own, everyones")
def own_again(): ...


# Puts what arrives into the next place.
@edit("everyones[(me - step) % size]", "everyones[(me + step) % size]")
@edit("everyones[(me + 1 - step) % size]", "everyones[(me - 1 + step) % size]")
def other_places(): ...


# Ends a step too early.
@edit("range(1, size)", "range(1, size - 1)")
def too_few_steps(): ...


# Receives into a new tensor, which is not in the list.
@edit("dist.recv(arrives, previous)\n        else:", "dist.recv(arrives.clone(), previous)\n        else:")
def into_a_copy(): ...


# Fills the list with one tensor.
@edit("    for step in range(1, size):\n", "    everyones = [own] * size\n    for step in range(1, size):\n")
def one_tensor(): ...


# Receives into one tensor, which it puts into all places.
@edit("    for step in range(1, size):\n", "    everyones = [own if of == me else everyones[me - 1] for of in range(size)]\n    for step in range(1, size):\n")
@edit("everyones[(me + 1 - step) % size], everyones", "everyones[(me + 1 - step) % size].clone(), everyones")
def one_buffer(): ...


# Starts everything, and waits.
def starts(own: torch.Tensor) -> list[torch.Tensor]:
    me, size = dist.get_rank(), dist.get_world_size()
    everyones = [torch.zeros_like(own) for _ in range(size)]
    everyones[me].copy_(own)
    for step in range(1, size):
        works = [
            dist.isend(everyones[(me + 1 - step) % size], (me + 1) % size),
            dist.irecv(everyones[(me - step) % size], (me - 1) % size),
        ]
        for work in works:
            work.wait()
    return everyones


# Uses a collective.
def gathers(own: torch.Tensor) -> list[torch.Tensor]:
    everyones = [torch.zeros_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, own)
    return everyones


# Returns nothing.
@edit("    return everyones\n", "")
def returns_nothing(): ...


# Right: rank 0 alone sends first.
@edit("me % 2 == 0", "me == 0")
def rank_0_first(): ...


# Right: the result is a stack, whose rows are the tensors.
@edit("    return everyones\n", "    return list(torch.stack(everyones))\n")
def stacked(): ...
