"""Answers to `same_order`: wrong ones, and unusual right ones."""

import torch
import torch.distributed as dist

from lockstep_exercise import edit


# The given program: reduces in the order of the dict.
def as_given(own: dict[str, float]) -> dict[str, float]:
    means = {}
    for name, value in own.items():
        total = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(total)
        means[name] = total.item() / dist.get_world_size()
    return means


# One tensor, in the order of the dict.
@edit("sorted(own)", "list(own)")
def one_tensor(): ...


# The names in the order of a set, which depends on the process.
@edit("sorted(own)", "list(set(own))")
def of_a_set(): ...


# Sorts by the values, which differ from rank to rank.
@edit("sorted(own)", "sorted(own, key=own.get)")
def by_value(): ...


# Sorts the names and forgets the values.
@edit("[own[name] for name in names]", "list(own.values())")
def only_names(): ...


# Sorts without regard to case, which leaves two names in the order of the dict.
@edit("sorted(own)", "sorted(own, key=str.lower)")
def without_case(): ...


# The values of rank 0.
@edit("dist.all_reduce(totals)", "dist.broadcast(totals, 0)")
@edit("totals / ranks", "totals")
def of_rank_0(): ...


# Does not divide.
@edit("totals / ranks", "totals")
def summed(): ...


# Reduces a copy.
@edit("dist.all_reduce(totals)", "dist.all_reduce(totals.clone())")
def of_a_copy(): ...


# Returns the means without their names.
@edit("dict(zip(names, (totals / ranks).tolist()))", "(totals / ranks).tolist()")
def without_names(): ...


# Right: gathers the dicts.
def gathers(own: dict[str, float]) -> dict[str, float]:
    everyones: list[dict[str, float]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyones, own)
    return {name: sum(metrics[name] for metrics in everyones) / len(everyones) for name in own}


# Right: one call for each metric, in the order of the names.
def sorted_calls(own: dict[str, float]) -> dict[str, float]:
    means = {}
    for name in sorted(own):
        total = torch.tensor([own[name]], dtype=torch.float64)
        dist.all_reduce(total)
        means[name] = total / dist.get_world_size()
    return means
