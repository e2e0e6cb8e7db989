#!/usr/bin/env python3
"""Writes zero.json: which rank Python's ZeroRedundancyOptimizer gives each parameter to.

Needs PyTorch 2.11 (the CPU build will do). Each case has the numbers of elements of the parameters of each group, the number of
ranks, and the owner of each parameter.
"""

import json
import pathlib

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.testing._internal.distributed.fake_pg import FakeStore

OUT = pathlib.Path(__file__).with_name("zero.json")
SIZES = [
    [[5]],
    [[4, 4, 4, 4, 4]],
    [[1, 2, 3, 4, 5, 6, 7]],
    [[100, 10, 90, 10, 10, 3, 3, 60]],
    [[64, 2, 4096, 64, 192, 3], [7, 7, 500]],
]


def owners(groups, ranks):
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    groups = [[torch.nn.Parameter(torch.zeros(size)) for size in sizes] for sizes in groups]
    optimizer = ZeroRedundancyOptimizer([{"params": group} for group in groups], torch.optim.SGD, lr=0.1)
    owner = optimizer._param_to_rank
    dist.destroy_process_group()
    return [[owner[param] for param in group] for group in groups]


cases = [{"sizes": sizes, "ranks": ranks, "owners": owners(sizes, ranks)} for sizes in SIZES for ranks in range(1, 6)]
OUT.write_text(json.dumps({"torch": torch.__version__, "cases": cases}) + "\n")
