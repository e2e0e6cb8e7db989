"""Task 8: one order of additions, for any number of ranks. Spot the bug.

Each rank has the gradients of its virtual ranks, `ranks.part`, and all ranks need the sum over all virtual ranks, with the same bits on any
number of ranks. So there is one order of additions, a binary tree over the virtual ranks: the sum of a node is the sum of its first half
plus that of its second half. With six virtual ranks this is (0 + (1 + 2)) + (3 + (4 + 5)).

A rank adds up what lies within its part before it sends anything, and sends the sums of the largest nodes there: each node
whose parent does not lie within the part.
"""

import torch

from lockstep_exercise.lab_06 import Ranks, halves


def tree_sum(ranks: Ranks, gradients: dict[range, torch.Tensor]) -> torch.Tensor:
    """Returns the sum over all virtual ranks, in the order of the tree, on every rank. `gradients` has one of the range `range(v, v + 1)` for
    each virtual rank v of this rank."""
    # <answer>
    #~ # All ranks end with equal sums, but on another number of ranks the last bits are others.
    #~ own = sum(gradients[range(v, v + 1)] for v in ranks.part)
    #~ # `halves(node)` has the two halves of a node, `ranks.tree()` all nodes that have halves, each after these.
    #~ everybody = ranks.exchange({ranks.part: own})
    #~ return sum(total for part, total in sorted(everybody, key=lambda each: each[0].start))
    def add_up(sums: dict[range, torch.Tensor]) -> dict[range, torch.Tensor]:
        # Two halves that are both there give way to their sum. What is left in the end are the largest nodes.
        for node in ranks.tree():
            left, right = halves(node)
            if left in sums and right in sums:
                sums[node] = sums.pop(left) + sums.pop(right)
        return sums

    own = add_up(dict(gradients))
    return add_up(dict(ranks.exchange(own)))[range(ranks.virtual_ranks)]
    # </answer>
