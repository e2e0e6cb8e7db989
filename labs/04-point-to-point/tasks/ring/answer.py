"""Task 1: a ring of blocking messages.

Each rank starts with one tensor and must end with the tensors of all ranks. A rank exchanges messages only with its two neighbours. In every
step it sends the tensor that it received in the previous step (in the first step, its own tensor) to the next rank, and receives a tensor
from the previous rank. After `size - 1` steps, every tensor has been on every rank. `send` and `recv` block: a send ends when the other side
receives. Use these two alone. A job may also have a single rank, which sends nothing.
"""

import torch
import torch.distributed as dist


def ring(own: torch.Tensor) -> list[torch.Tensor]:
    """Returns the tensors of all ranks, by rank. All have the same shape."""
    me, size = dist.get_rank(), dist.get_world_size()
    following, previous = (me + 1) % size, (me - 1) % size
    everyones = [torch.zeros_like(own) for _ in range(size)]
    everyones[me].copy_(own)
    # <answer>
    #~ # `dist.send(tensor, following)` and `dist.recv(tensor, previous)`: in what order, and on which ranks?
    #~ raise NotImplementedError("pass the tensors around until every rank has all of them")
    for step in range(1, size):
        leaves, arrives = everyones[(me + 1 - step) % size], everyones[(me - step) % size]
        if me % 2 == 0:
            dist.send(leaves, following)
            dist.recv(arrives, previous)
        else:
            dist.recv(arrives, previous)
            dist.send(leaves, following)
    return everyones
    # </answer>
