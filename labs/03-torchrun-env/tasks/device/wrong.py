"""Answers to `device`: wrong ones, and unusual right ones."""

from lockstep_exercise import edit


# The given program: the local rank for everything. In Rust, RANK and LOCAL_RANK are types of their own.
@edit("group_rank=worker.rank", "group_rank=worker.local_rank")
@edit("saves=worker.rank == 0", "saves=worker.local_rank == 0")
def as_given(): ...


# The rank for everything: on the second node there is no such GPU.
@edit("gpu=worker.local_rank", "gpu=worker.rank")
def global_gpu(): ...


# The rank modulo the GPUs, which is right only if all nodes are alike.
@edit("gpu=worker.local_rank", "gpu=worker.rank % gpus")
def modulo(): ...


# Refuses all processes of a node that has too few GPUs.
@edit("if worker.local_rank >= gpus:", "if worker.local_world_size > gpus:")
def whole_node(): ...


# The first process of each node saves.
@edit("saves=worker.rank == 0", "saves=worker.local_rank == 0")
def each_node_saves(): ...


# Every process saves.
@edit("saves=worker.rank == 0", "saves=True")
def all_save(): ...


# The group has the local rank.
@edit("group_rank=worker.rank", "group_rank=worker.local_rank")
def local_group(): ...


# The last process saves under a number that only one node has.
@edit("saves=worker.rank == 0", "saves=worker.local_rank == worker.local_world_size - 1")
def last_saves(): ...


# Right: the last process of the job saves.
@edit("saves=worker.rank == 0", "saves=worker.rank == worker.world_size - 1")
def last_of_the_job(): ...
