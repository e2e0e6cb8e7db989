"""Golden values for crates/lockstep/tests/it/ddp_features.rs: what Python's DDP does with sparse gradients and a static graph.

Run it with a Python that has PyTorch 2.11; it rewrites ddp_features.json. Two ranks on Gloo train each
model for six steps. Weights and inputs follow the integer formulas of ddp.py.
"""

import json
import os
import pathlib

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from ddp import free_port, tensor

WORLD, STEPS = 2, 6
OUTPUT = pathlib.Path(__file__).with_name("ddp_features.json")


class Words(nn.Module):
    """An embedding of ten words, of which each step uses a few, with sparse gradients."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 4, sparse=True)
        self.head = nn.Linear(4, 3)

    def forward(self, words):
        return self.head(self.table(words).mean(1))


class Twice(nn.Module):
    """A layer that two functions use which are computed again in the backward pass, and one that nothing uses."""

    def __init__(self):
        super().__init__()
        self.shared = nn.Linear(6, 6)
        self.head = nn.Linear(6, 3)
        self.idle = nn.Linear(2, 2)

    def forward(self, inputs):
        for _ in range(2):
            inputs = checkpoint(lambda x: torch.tanh(self.shared(x)), inputs, use_reentrant=True)
        return self.head(inputs)


def words(rank, step):
    return torch.tensor([(3 * i + 2 * step + 5 * rank) % 10 for i in range(4)]).reshape(2, 2)


def numbers(rank, step):
    return tensor((2, 6), 10 * rank + step).requires_grad_()


def plain():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


RUNS = {
    "sparse": (Words, words, {}),
    "static_graph": (Twice, numbers, {"static_graph": True, "bucket_cap_mb": 0.0001}),
    "plain": (plain, numbers, {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.0001}),
}


def worker(rank, port, results, name):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, WORLD, rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD)
    model, inputs, options = RUNS[name]
    model = model()
    with torch.no_grad():
        for salt, parameter in enumerate(model.parameters()):
            parameter.copy_(tensor(parameter.shape, salt + 1, 0.5))
    ddp = DistributedDataParallel(model, **options)
    if name == "plain":
        ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.5)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        targets = torch.tensor([(step + i + rank) % 3 for i in range(2)])
        loss = nn.functional.cross_entropy(ddp(inputs(rank, step)), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    results[rank] = {"losses": losses}
    dist.barrier()
    dist.destroy_process_group()


def main():
    runs = {}
    with mp.Manager() as manager:
        for name in RUNS:
            results = manager.dict()
            mp.spawn(worker, (free_port(), results, name), nprocs=WORLD)
            runs[name] = [results[rank] for rank in range(WORLD)]
    OUTPUT.write_text(json.dumps({"torch": torch.__version__.split("+")[0], "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
