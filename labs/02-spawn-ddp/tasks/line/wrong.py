"""Answers to `line`: wrong ones, and unusual right ones."""

import torch
import torch.distributed as dist

from lockstep_exercise import edit


# The given program: runs the program for one process on every rank, so each fits its own line.
@edit("batch = batch_size // ranks", "batch = batch_size")
@edit("dist.all_reduce(mean)", "pass")
@edit("mean / ranks", "mean")
def serial(): ...


# Uses the batch size as that of each rank.
@edit("batch_size // ranks", "batch_size")
def large(): ...


# Adds up the gradients but does not divide the sum.
@edit("mean / ranks", "mean")
def summed(): ...


# Adds up and uses the batch size of each rank.
@edit("batch_size // ranks", "batch_size")
@edit("mean / ranks", "mean")
def large_and_summed(): ...


# Trains alone on every rank and averages the lines once, at the end.
@edit("dist.all_reduce(mean)", "pass")
@edit("line -= rate * mean / ranks", "line -= rate * mean\n    dist.all_reduce(line)\n    line /= ranks")
def at_the_end(): ...


# Passes a temporary to `all_reduce`: the sum is in a tensor that nobody has.
@edit("dist.all_reduce(mean)", "dist.all_reduce(mean.clone())")
def of_a_copy(): ...


# Uses a true division, which makes a float.
@edit("batch_size // ranks", "batch_size / ranks")
def float_batch(): ...


# Reads the sum before it has arrived.
@edit("dist.all_reduce(mean)", "work = dist.all_reduce(mean, async_op=True)")
@edit("line -= rate * mean / ranks", "line -= rate * mean / ranks\n        work.wait()")
def before_the_wait(): ...


# Returns the tuple of slope and intercept.
@edit("line -= rate * mean / ranks", "line -= rate * mean / ranks\n    return line[0].item(), line[1].item()")
def floats(): ...


# Gathers all points, and trains on them on every rank.
def gathers(x: torch.Tensor, y: torch.Tensor, batch_size: int, rate: float) -> torch.Tensor:
    def everyones(own: torch.Tensor) -> torch.Tensor:
        shares = [torch.zeros_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(shares, own)
        return torch.stack(shares, 1).flatten()

    line = torch.zeros(2, dtype=torch.float64)
    for some_x, some_y in zip(everyones(x).split(batch_size), everyones(y).split(batch_size), strict=True):
        error = line[0] * some_x + line[1] - some_y
        line -= rate * 2 * torch.stack([(error * some_x).mean(), error.mean()])
    return line


# Right: each rank takes its own step, and the lines are averaged after each step. Without momentum this is the same.
@edit("dist.all_reduce(mean)", "line -= rate * mean")
@edit("line -= rate * mean / ranks", "dist.all_reduce(line); line /= ranks")
def weights(): ...
