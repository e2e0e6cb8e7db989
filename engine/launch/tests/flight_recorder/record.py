"""Records PyTorch's flight recorder on the CPU, for the tests of `engine/launch/src/verdict/flight_recorder.rs`:

    TORCH_FR_BUFFER_SIZE=100 lockstep run --standalone --nproc-per-node=3 record.py behind

writes `behind/rank_0` to `behind/rank_2`. Rank 1 is `behind` the others, or rank 2 `differs` from them. Gloo itself writes no
files, so each rank writes its own, as NCCL's watchdog does. In the files of the tests, a folder is replaced by one of the same length.
"""

import datetime
import os
import sys

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace

what = sys.argv[1]
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=10))
rank = dist.get_rank()
os.makedirs(what, exist_ok=True)
try:
    dist.all_reduce(torch.ones(4))
    # The same number of bytes, so that Gloo does not notice it.
    dist.all_reduce(torch.ones(2, 2) if (what, rank) == ("differs", 2) else torch.ones(4))
    if what == "behind" and rank != 1:
        dist.broadcast(torch.ones(2, 5, dtype=torch.float64), 1)
except RuntimeError as error:
    print(f"rank {rank}: {error}")
with open(f"{what}/rank_{rank}", "wb") as file:
    file.write(_dump_fr_trace(includeCollectives=True, includeStackTraces=True, onlyActive=False))
