"""Task 4: an all-reduce on two levels.

Messages are slow between nodes and fast within a node. So the ranks of a node first add up among themselves. Then one rank of each node, its
leader, adds up with the other leaders. Finally the leaders pass the result on within their nodes. Only the second step sends messages
between nodes. Nodes may have different numbers of ranks.
"""

import torch
import torch.distributed as dist


def leaders(nodes: list[int], tensor: torch.Tensor) -> None:
    """Replaces `tensor` by its sum over all ranks, on every rank, in place.

    Node n has `nodes[n]` ranks: the first ranks are on node 0, the next ones on node 1, and so on. The lowest rank of a node is its leader.
    Only leaders send between nodes. A rank that only starts an operation (`async_op=True`) has to `wait` for it before the next step.
    """
    # Every rank must call `dist.new_group(ranks)` for every group, in the same order. `dist.reduce(tensor, dst, group=group)` and
    # `dist.broadcast(tensor, src, group=group)` name a rank by its number in the whole job, also in a group.
    raise NotImplementedError("add up within the node, then among the leaders, and pass the result on within the node")
