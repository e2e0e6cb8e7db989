"""Task 3: metrics by name. Spot the bug.

After an epoch, every rank has measured the same metrics on its own samples: loss, accuracy, recall and so on. All ranks need the mean of
each metric over the ranks. A dict keeps the order in which it was filled, and ranks may fill it in different orders.
"""

import torch
import torch.distributed as dist


def same_order(own: dict[str, float]) -> dict[str, float]:
    """Returns the mean of every metric over the ranks. The names of the metrics are the same on all ranks."""
    ranks = dist.get_world_size()
    means = {}
    for name, value in own.items():
        total = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(total)
        means[name] = total.item() / ranks
    return means
