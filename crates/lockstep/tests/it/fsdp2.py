"""The training of `fully_shard.rs` by PyTorch's own FSDP2, on Gloo and CPU: prints each rank's losses as JSON.

Usage: fsdp2.py RANKS STEPS; needs PyTorch 2.11.
"""

import json
import os
import sys
import tempfile

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

SAMPLES = 12


def formula(shape, salt, scale):
    count = 1
    for size in shape:
        count *= size
    values = [((i * 7919 + salt * 104729) % 2001 - 1000) / 1000 * scale for i in range(count)]
    return torch.tensor(values, dtype=torch.float32).reshape(shape).double()


class First(torch.nn.Module):
    def __init__(self):
        super().__init__()
        # The order in which tch makes variables: biases first.
        self.bias = torch.nn.Parameter(formula((7,), 1, 0.5))
        self.weight = torch.nn.Parameter(formula((7, 5), 2, 0.5))
        self.scale = torch.nn.Parameter(formula((1,), 7, 0.5))  # FSDP2 takes no scalars

    def forward(self, x):
        return (torch.nn.functional.linear(x, self.weight, self.bias) * self.scale).tanh()


class Linear(torch.nn.Module):
    def __init__(self, inputs, outputs, salt):
        super().__init__()
        self.bias = torch.nn.Parameter(formula((outputs,), salt, 0.5))
        self.weight = torch.nn.Parameter(formula((outputs, inputs), salt + 1, 0.5))

    def forward(self, x):
        return torch.nn.functional.linear(x, self.weight, self.bias)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.middle, self.last = First(), Linear(7, 7, 3), Linear(7, 3, 5)

    def forward(self, x):
        return self.last(self.middle(self.middle(self.first(x)).tanh()).tanh())


def work(rank, ranks, steps, file, results):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,))
    net = Net()
    for unit in (net.first, net.middle, net.last, net):
        fully_shard(unit, mesh=mesh)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.05)
    losses = []
    for step in range(steps):
        own = slice(rank * SAMPLES // ranks, (rank + 1) * SAMPLES // ranks)
        inputs, targets = formula((SAMPLES, 5), 100 + step, 1.0)[own], formula((SAMPLES, 3), 200 + step, 1.0)[own]
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(net(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with open(f"{results}/{rank}", "w") as out:
        json.dump(losses, out)
    dist.barrier()
    # Interpreters that end with Gloo's threads in them now and then hang.
    os._exit(0)


def main():
    ranks, steps = int(sys.argv[1]), int(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(work, (ranks, steps, f"{folder}/store", folder), nprocs=ranks)
        print(json.dumps([json.load(open(f"{folder}/{rank}")) for rank in range(ranks)]))


if __name__ == "__main__":
    assert torch.__version__.startswith("2.11."), torch.__version__
    main()
