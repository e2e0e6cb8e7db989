"""Task 1: every sample once.

The ranks share a data set: each takes every `world_size`th sample, starting with the sample whose number is its rank. All ranks must take
the same number of steps, or some would wait forever in a collective. So if the samples do not divide evenly, the shares are filled with
samples from the beginning. PyTorch's `DistributedSampler` does the same with `shuffle=False`.
"""


def shard(samples: int, world_size: int, rank: int) -> list[int]:
    """Returns the numbers of the samples that `rank` takes.

    The data set has `samples` samples: at least one, and perhaps fewer than there are ranks.
    """
    # <answer>
    #~ # For 7 samples and 3 ranks: rank 0 takes 0, 3, 6, rank 1 takes 1, 4, 0, rank 2 takes 2, 5, 1.
    #~ raise NotImplementedError("the numbers of this rank's samples")
    each = -(-samples // world_size)
    return [(turn * world_size + rank) % samples for turn in range(each)]
    # </answer>
