"""Task 3: receive the next batch while computing on this one. Spot the bug.

Rank 0 sends batches, and rank 1 computes a number from each. Receiving and computing overlap: rank 1 starts to receive the next batch before
it computes on the current one, so that a receive is in progress while it computes. There are more batches than memory: rank 1 has room for
two, the one that it computes on and the one that comes.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist


def prefetch(batches: int, length: int, compute: Callable[[torch.Tensor], float]) -> list[float]:
    """Receives `batches` batches of `length` numbers (float64) each from rank 0, and returns the result of `compute` for each."""
    # <answer>
    #~ batch, results = torch.zeros(length, dtype=torch.float64), []
    #~ coming = dist.irecv(batch, 0)
    #~ while coming is not None:
    #~     coming.wait()
    #~     coming = dist.irecv(batch, 0) if len(results) + 1 < batches else None
    #~     results.append(compute(batch))
    #~ return results
    here, there, results = torch.zeros(length, dtype=torch.float64), torch.zeros(length, dtype=torch.float64), []
    coming = dist.irecv(there, 0)
    while coming is not None:
        coming.wait()
        here, there = there, here
        coming = dist.irecv(there, 0) if len(results) + 1 < batches else None
        results.append(compute(here))
    return results
    # </answer>
