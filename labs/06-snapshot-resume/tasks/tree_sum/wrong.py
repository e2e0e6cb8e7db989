"""Answers to `tree_sum`: wrong ones, and unusual right ones."""

import math

import torch

from lockstep_exercise import edit
from lockstep_exercise.lab_06 import Ranks, halves


def _in_order(everybody: list[tuple[range, torch.Tensor]]) -> list[torch.Tensor]:
    return [total for _, total in sorted(everybody, key=lambda each: each[0].start)]


def _one_of(ranks: Ranks, gradients: dict[range, torch.Tensor]) -> dict[range, torch.Tensor]:
    return {ranks.part: sum(gradients[range(v, v + 1)] for v in ranks.part)}


# The given program: the ranks' sums in the order of the ranks.
def as_given(ranks: Ranks, gradients: dict[range, torch.Tensor]) -> torch.Tensor:
    return sum(_in_order(ranks.exchange(_one_of(ranks, gradients))))


# Its own sum first, then those of the others.
def own_first(ranks: Ranks, gradients: dict[range, torch.Tensor]) -> torch.Tensor:
    own = _one_of(ranks, gradients)
    everybody = sorted(ranks.exchange(own), key=lambda each: (each[0] != ranks.part, each[0].start))
    return sum(total for _, total in everybody)


# As they arrive.
def as_they_arrive(ranks: Ranks, gradients: dict[range, torch.Tensor]) -> torch.Tensor:
    return sum(total for _, total in ranks.exchange(_one_of(ranks, gradients)))


# All gradients one after the other.
def one_after_the_other(ranks: Ranks, gradients: dict[range, torch.Tensor]) -> torch.Tensor:
    return sum(_in_order(ranks.exchange(gradients)))


# All gradients at once, in the order that torch takes.
def stacked(ranks: Ranks, gradients: dict[range, torch.Tensor]) -> torch.Tensor:
    return torch.stack(_in_order(ranks.exchange(gradients))).sum(0)


# The exact sum, rounded once.
def exact(ranks: Ranks, gradients: dict[range, torch.Tensor]) -> torch.Tensor:
    everybody = _in_order(ranks.exchange(gradients))
    numbers = [math.fsum(each) for each in zip(*(total.tolist() for total in everybody), strict=True)]
    return torch.tensor(numbers, dtype=everybody[0].dtype)


# Kahan's sum.
def kahan(ranks: Ranks, gradients: dict[range, torch.Tensor]) -> torch.Tensor:
    everybody = _in_order(ranks.exchange(gradients))
    total, lost = torch.zeros_like(everybody[0]), torch.zeros_like(everybody[0])
    for gradient in everybody:
        following = gradient - lost
        grown = total + following
        lost = (grown - total) - following
        total = grown
    return total


# In double precision, and that is returned.
@edit("add_up(dict(gradients))", "add_up({node: gradient.double() for node, gradient in gradients.items()})")
def in_double(): ...


# In double precision, rounded once.
@edit("[range(ranks.virtual_ranks)]", "[range(ranks.virtual_ranks)].to(next(iter(gradients.values())).dtype)")
@edit("add_up(dict(gradients))", "add_up({node: gradient.double() for node, gradient in gradients.items()})")
def rounds_once(): ...


# In double precision, rounded where sums are sent and at the end.
def rounds_to_send(ranks: Ranks, gradients: dict[range, torch.Tensor]) -> torch.Tensor:
    def add_up(sums: dict[range, torch.Tensor]) -> dict[range, torch.Tensor]:
        sums = {node: total.double() for node, total in sums.items()}
        largest = set(sums)
        for node in ranks.tree():
            if all(half in sums for half in halves(node)):
                sums[node] = sum(sums[half] for half in halves(node))
                largest -= set(halves(node))
                largest.add(node)
        return {node: sums[node].to(dtype) for node in largest}

    dtype = next(iter(gradients.values())).dtype
    return add_up(dict(ranks.exchange(add_up(gradients))))[range(ranks.virtual_ranks)]


# A tree over the ranks.
def tree_of_ranks(ranks: Ranks, gradients: dict[range, torch.Tensor]) -> torch.Tensor:
    def along(totals: list[torch.Tensor]) -> torch.Tensor:
        middle = len(totals) // 2
        return along(totals[:middle]) + along(totals[middle:]) if middle else totals[0]

    own = along([gradients[range(v, v + 1)] for v in ranks.part])
    return along(_in_order(ranks.exchange({ranks.part: own})))


# Neighbours in pairs.
def pairs(ranks: Ranks, gradients: dict[range, torch.Tensor]) -> torch.Tensor:
    totals = _in_order(ranks.exchange(gradients))
    while len(totals) > 1:
        totals = [sum(totals[at : at + 2]) for at in range(0, len(totals), 2)]
    return totals[0]


# Sends each gradient.
@edit("own = add_up(dict(gradients))", "own = gradients")
def sends_all(): ...


# Adds up without taking the halves away, and sends all of it.
@edit("sums.pop(left) + sums.pop(right)", "sums[left] + sums[right]")
def keeps_halves(): ...


# Does not return the sum.
@edit("return add_up(dict(", "add_up(dict(")
def without_a_return(): ...


# Exchanges each sum by itself.
@edit(
    "return add_up(dict(ranks.exchange(own)))",
    "everybody = [one for node, total in own.items() for one in ranks.exchange({node: total})]\n    return add_up(dict(everybody))",
)
def one_by_one(): ...


# Right: recursive, from the root down.
def recursive(ranks: Ranks, gradients: dict[range, torch.Tensor]) -> torch.Tensor:
    def total(node: range, sums: dict[range, torch.Tensor]) -> torch.Tensor:
        if node in sums:
            return sums[node]
        left, right = halves(node)
        return total(left, sums) + total(right, sums)

    def largest(node: range) -> list[range]:
        if all(v in ranks.part for v in node):
            return [node]
        return [part for half in halves(node) for part in largest(half)] if any(v in ranks.part for v in node) else []

    own = {node: total(node, gradients) for node in largest(range(ranks.virtual_ranks))}
    return total(range(ranks.virtual_ranks), dict(ranks.exchange(own)))
