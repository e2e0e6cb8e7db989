"""Answers to `mean`: wrong ones, and unusual right ones."""

import torch
import torch.distributed as dist

from lockstep_exercise import edit


# Returns the mean of this rank's samples.
@edit("    dist.all_reduce(totals)\n", "")
def local(): ...


# The mean of the ranks' means, in which each shard weighs the same.
def of_means(losses: torch.Tensor) -> float:
    mean = losses.mean() if losses.numel() else torch.zeros((), dtype=torch.float64)
    dist.all_reduce(mean)
    return (mean / dist.get_world_size()).item()


# The mean of an empty shard is NaN, and so is the sum.
def with_nan(losses: torch.Tensor) -> float:
    mean = losses.mean()
    dist.all_reduce(mean)
    return (mean / dist.get_world_size()).item()


# Ranks without samples leave before the collective.
@edit("    totals =", "    if losses.numel() == 0:\n        return 0.0\n    totals =")
def leaves_early(): ...


# Returns the sum.
@edit("(totals[0] / totals[1]).item()", "totals[0].item()")
def total(): ...


# Divides by this rank's number of samples.
@edit("totals[0] / totals[1]", "totals[0] / max(losses.numel(), 1)")
def by_own_count(): ...


# Counts in whole numbers, and sums the losses as such: int64 drops the fraction.
@edit(
    "torch.stack([losses.sum(), torch.tensor(losses.numel(), dtype=torch.float64)])",
    "torch.tensor([int(losses.sum()), losses.numel()])",
)
def whole_numbers(): ...


# The result is on rank 0 only.
@edit("dist.all_reduce(totals)", "dist.reduce(totals, 0)")
def on_rank_0(): ...


# Prints the mean on rank 0, and returns it nowhere.
@edit("return (totals[0] / totals[1]).item()", "print((totals[0] / totals[1]).item())")
def prints(): ...


# Does not wait for the sum.
@edit("dist.all_reduce(totals)", "dist.all_reduce(totals, async_op=True)")
def without_a_wait(): ...


# Right: with two calls and a tensor as the result.
def two_calls(losses: torch.Tensor) -> torch.Tensor:
    total, count = losses.sum(), torch.tensor(losses.numel())
    dist.all_reduce(total)
    dist.all_reduce(count)
    return total / count
