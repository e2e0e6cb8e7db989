"""Task 2: what `DistributedDataParallel` does to gradients.

After the backward pass, each rank has the gradients of its own samples. The mean over the ranks is the gradient of all samples, so every
rank must end with that mean. Here you average one gradient after the other; DDP sends several of them in one bucket while the backward pass
still runs.
"""

import torch
import torch.distributed as dist


def average(gradients: list[torch.Tensor]) -> None:
    """Replaces each gradient by its mean over all ranks, in place."""
    # <answer>
    #~ # `dist.all_reduce(tensor)` leaves the sum on every rank; `dist.get_world_size()` is the number of ranks.
    #~ raise NotImplementedError("average each gradient over all ranks")
    ranks = dist.get_world_size()
    for gradient in gradients:
        dist.all_reduce(gradient)
        gradient /= ranks
    # </answer>
