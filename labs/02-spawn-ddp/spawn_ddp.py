"""Lab 02's toy model in Python: python spawn_ddp.py [--nprocs N]. It starts its own processes, so no launcher may start it.

Weights and data are those of the Rust program, so the losses are the same.
"""

import argparse
import math
import os
import time
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1 = nn.Linear(10, 10)
        self.net2 = nn.Linear(10, 5)

    def forward(self, x):
        return self.net2(torch.relu(self.net1(x)))


# ANCHOR: demo
def demo_basic(rank, world_size, store):
    print(f"Running basic DDP example on rank {rank}.", flush=True)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)

    # Each rank starts with different weights and data. DDP replaces the weights by rank 0's.
    model = ToyModel()
    torch.manual_seed(rank)
    for layer in model.children():
        # As tch initializes a layer: the bias first, and weights from a wider range than Python's.
        nn.init.uniform_(layer.bias, -1 / math.sqrt(10), 1 / math.sqrt(10))
        nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.001)

    optimizer.zero_grad()
    outputs = ddp_model(torch.randn(20, 10))
    loss = nn.functional.mse_loss(outputs, torch.randn(20, 5))
    loss.backward()
    optimizer.step()

    most = torch.cat([weights.detach().flatten() for weights in model.parameters()])
    least = most.clone()
    dist.all_reduce(most, dist.ReduceOp.MAX)
    dist.all_reduce(least, dist.ReduceOp.MIN)
    spread = (most - least).max().item()
    print(f"Rank {rank}: loss {loss:.4f}, weights differ between ranks by {spread:g}", flush=True)
    dist.barrier()  # PyTorch 2.11 may hang if a thread of Gloo lets go of a tensor while the group ends,
    time.sleep(0.1)  # for which it needs Python's lock: the last rank to arrive at the barrier leaves it no time
    dist.destroy_process_group()
# ANCHOR_END: demo


# ANCHOR: main
if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--nprocs", type=int, default=2)
    nprocs = parser.parse_args().nprocs
    with tempfile.TemporaryDirectory() as folder:
        # The ranks meet at a file: a port of the tutorials' kind may be taken.
        mp.spawn(demo_basic, args=(nprocs, os.path.join(folder, "store")), nprocs=nprocs)
# ANCHOR_END: main
