"""Task 7: samples and random numbers of virtual ranks. Spot the bug.

A training has `virtual_ranks` virtual ranks for all its life, and now as many ranks as the scheduler has left it. Each step trains every
virtual rank once, on one of the ranks, and with the same samples and the same random numbers on any number of ranks:

- Each rank has neighbouring virtual ranks, rank 0 the first ones, and no rank has two more than another.
- Virtual rank v has the samples that `DistributedSampler` gives to rank v of as many ranks: those at the places v, v + `virtual_ranks`,
  v + 2 `virtual_ranks`, … of the epoch's order, `batch_size` of them in a step.
- Its random numbers depend on the seed, the epoch, the step and v, and on nothing else.
"""

import random

from lockstep_exercise.lab_06 import Training


def virtual_ranks(run: Training, epoch: int, step: int) -> None:
    """Trains the virtual ranks of rank `run.rank` in one step of an epoch, by one call of `run.train` for each."""
    # <answer>
    #~ # A training without virtual ranks: with another number of ranks, a step has other samples and other random numbers.
    #~ share = run.order(epoch)[run.rank :: run.ranks]
    #~ batch = share[step * run.batch_size :][: run.batch_size]
    #~ run.train(run.rank, batch, random.Random(f"{run.seed}, {epoch}, {step}, {run.rank}"))
    count = run.virtual_ranks
    for v in range(run.rank * count // run.ranks, (run.rank + 1) * count // run.ranks):
        share = run.order(epoch)[v::count]
        batch = share[step * run.batch_size :][: run.batch_size]
        run.train(v, batch, random.Random(f"{run.seed}, {epoch}, {step}, {v}"))
    # </answer>
