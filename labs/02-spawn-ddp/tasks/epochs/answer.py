"""Task 3: a new order every epoch. Spot the bug.

All ranks shuffle the numbers of all samples in the same way, and each takes its share of the result. So no rank has to send the order to the
others. The order depends only on the seed and the epoch: a run that resumes at epoch 5 visits the samples in the same order as a run that
never stopped.

A `Sampler` has the fields `samples`, `world_size`, `rank`, `seed` and `epoch`, and the methods of PyTorch's `DistributedSampler` that
matter here: `set_epoch(epoch)`, and `indices()`, this rank's share in the order in which the rank visits it.
"""

from lockstep_exercise.lab_02 import Sampler


def epochs(sampler: Sampler, epochs: range) -> list[list[int]]:
    """Returns the samples that this rank visits in each of the `epochs`."""
    visited = []
    for epoch in epochs:
        print(f"epoch {epoch} begins")
        # <answer>
        #~ visited.append(sampler.indices())
        sampler.set_epoch(epoch)
        visited.append(sampler.indices())
        # </answer>
    return visited
