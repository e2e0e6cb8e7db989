

"""The same as crates/bench-ranks/src/parallel.rs in Python: the same weights to the bit, the same rows, and the same steps."""

import functools
import gc
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

PARALLEL_WARM_UP, INPUTS, TARGETS, RATE = 2, 1000, 2000, 1e-3


class MlpBlock(nn.Module):
    def __init__(self, block, features):
        super().__init__()
        self.first = nn.Linear(features, 4 * features, bias=False)
        self.second = nn.Linear(4 * features, features, bias=False)
        with torch.no_grad():
            self.first.weight.copy_(formula((4 * features, features), 2 * block + 1, features**-0.5))
            self.second.weight.copy_(formula((features, 4 * features), 2 * block + 2, (4 * features) ** -0.5))

    def forward(self, x):
        return x + self.second(nn.functional.gelu(self.first(x)))


class DividedTrainer:
    def __init__(self, order, rank, world):
        from torch.distributed.device_mesh import init_device_mesh

        self.model = nn.Sequential(*(MlpBlock(block, order["features"]) for block in range(order["blocks"])))
        mesh = init_device_mesh("cpu", (world,))
        optimizer = functools.partial(torch.optim.AdamW, lr=RATE, fused=True if "--fused" in sys.argv else None)
        if order["scheme"] == "zero":
            from torch.distributed.optim import ZeroRedundancyOptimizer

            self.model = DistributedDataParallel(self.model)
            optimizer = functools.partial(ZeroRedundancyOptimizer, optimizer_class=optimizer.func, **optimizer.keywords)
        elif order["scheme"] == "sharded":
            from torch.distributed.fsdp import fully_shard

            for unit in [*self.model, self.model]:
                fully_shard(unit, mesh=mesh)
        else:
            from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

            for block in self.model:
                parallelize_module(block, mesh, {"first": ColwiseParallel(), "second": RowwiseParallel()})
        self.optimizer = optimizer(self.model.parameters())
        # Ranks with parts of a layer have the same rows.
        share = 0 if order["scheme"] == "tensor" else rank
        rows = (order["rows"], order["features"])
        self.inputs, self.targets = formula(rows, INPUTS + share, 1.0), formula(rows, TARGETS + share, 1.0)

    def step(self):
        """The seconds of a step from a common start, and the rank's loss."""
        dist.barrier()
        begun = time.perf_counter()
        self.optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(self.model(self.inputs), self.targets)
        loss.backward()
        self.optimizer.step()
        return time.perf_counter() - begun, loss.item()

    def kept(self):
        """The bytes of the memory that parameters, gradients, the optimizer's states and DDP's buckets lie in between two steps."""
        parameters = list(self.model.parameters())
        optimizer = getattr(self.optimizer, "optim", self.optimizer)
        states = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
        tensors = parameters + [parameter.grad for parameter in parameters if parameter.grad is not None] + states
        local = [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in local}
        buckets = 0
        if isinstance(self.model, DistributedDataParallel):
            sizes = self.model._get_ddp_logging_data()["rebuilt_bucket_sizes"]
            buckets = sum(int(size) for size in sizes.split(", "))
        return sum(storages.values()) + buckets


def proc_field(path, name):
    line = next(line for line in Path(path).read_text().splitlines() if line.startswith(name))
    return int(line.split()[1])


def parallel(order, rank, world):
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    mine = DividedTrainer(order, rank, world)
    losses = [mine.step()[1] for _ in range(PARALLEL_WARM_UP)]
    before = proc_field("/proc/self/io", "wchar:")
    steps = [mine.step() for _ in range(order["steps"])]
    sent = (proc_field("/proc/self/io", "wchar:") - before) / order["steps"]
    seconds, losses = [seconds for seconds, _ in steps], losses + [loss for _, loss in steps]
    peak = 1024 * proc_field("/proc/self/status", "VmHWM:")
    means = torch.tensor(seconds + losses + [sent, mine.kept(), peak], dtype=torch.float64)
    dist.all_reduce(means)
    means = (means / world).tolist()
    names = dict(zip(["sent", "kept", "peak"], means[-3:]))
    return {"step": statistics.median(means[: len(seconds)]), "losses": means[len(seconds) : -3]} | names
