"""Answers to `leaders`: wrong ones, and unusual right ones."""

import torch
import torch.distributed as dist

from lockstep_exercise import edit


# One all-reduce of all ranks.
def flat(nodes: list[int], tensor: torch.Tensor) -> None:
    dist.all_reduce(tensor)


# Adds up within the node only.
@edit("    if rank == leader:\n        dist.all_reduce(tensor, group=among_leaders)\n", "")
def within_nodes(): ...


# The leaders do not pass the result on.
@edit("    dist.broadcast(tensor, leader, group=node)\n", "")
def not_passed_on(): ...


# Each rank makes only the group of its own node: in Python `new_group` is a call of all ranks.
@edit("        group = dist.new_group(members)\n        if rank in members:\n            node, leader = group, first\n", "        if rank in members:\n            node, leader = dist.new_group(members), first\n")
def own_group_only(): ...


# Only leaders make the group of the leaders.
@edit("    among_leaders = dist.new_group(firsts)\n", "    among_leaders = dist.new_group(firsts) if rank == leader else None\n")
def leaders_make_theirs(): ...


# Numbers the members of a group from 0: in Python `dst` and `src` are ranks of the whole job.
@edit("dist.reduce(tensor, leader, group=node)", "dist.reduce(tensor, 0, group=node)")
def rank_in_group(): ...


# Forgets the group of the leaders, so that they call an operation of all ranks.
@edit("dist.all_reduce(tensor, group=among_leaders)", "dist.all_reduce(tensor)")
def forgets_the_group(): ...


# All nodes have as many ranks as the first.
@edit("first + size))", "first + nodes[0]))")
@edit("first += size", "first += nodes[0]")
def equal_nodes(): ...


# The last step adds up within the node again.
@edit("dist.broadcast(tensor, leader, group=node)", "dist.all_reduce(tensor, group=node)")
def adds_again(): ...


# Starts the first step and does not wait for it.
@edit("dist.reduce(tensor, leader, group=node)", "dist.reduce(tensor, leader, group=node, async_op=True)")
def without_a_wait(): ...


# Starts the last step and does not wait for it.
@edit("dist.broadcast(tensor, leader, group=node)", "dist.broadcast(tensor, leader, group=node, async_op=True)")
def drops_broadcast(): ...


# The result goes into a new tensor.
@edit("    dist.reduce(tensor, leader, group=node)\n", "    tensor = tensor.clone()\n    dist.reduce(tensor, leader, group=node)\n")
def of_a_copy(): ...


# The leaders reduce to one of them.
@edit("dist.all_reduce(tensor, group=among_leaders)", "dist.reduce(tensor, 0, group=among_leaders)")
def to_one_leader(): ...


# Right: an all-reduce within the node, and `new_subgroups` by hand.
@edit("dist.reduce(tensor, leader, group=node)", "dist.all_reduce(tensor, group=node)")
def all_reduce_within(): ...


# Right: starts, and waits.
@edit("dist.reduce(tensor, leader, group=node)", "dist.reduce(tensor, leader, group=node, async_op=True).wait()")
def waits(): ...
