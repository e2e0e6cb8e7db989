"""Golden values for crates/lockstep/tests/it/batch_norm.rs: batch normalization's statistics under Python's DDP.

Run it with a Python that has PyTorch 2.11; it rewrites batch_norm.json. Two ranks on Gloo take four
steps with a small network whose batches differ from rank to rank. Weights and samples follow integer formulas, as in
ddp.py, so that the Rust side makes the same bits without a file.

"losses" has each rank's; "running" each rank's running mean and variance as the last pass left them, with buffers broadcast
before each pass ("default") and without ("own"); "evaluated" the outputs of rank 1 in evaluation mode, which sends nothing.
"""

import json
import os
import pathlib

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddp import free_port, tensor

WORLD, STEPS, CHANNELS, CLASSES = 2, 4, 4, 3
OUTPUT = pathlib.Path(__file__).with_name("batch_norm.json")


def make_model():
    model = nn.Sequential(
        nn.Conv2d(2, CHANNELS, 3, padding=1, bias=False),
        nn.BatchNorm2d(CHANNELS),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(CHANNELS * 16, CLASSES),
    )
    with torch.no_grad():
        for salt, parameter in enumerate(model.parameters()):
            parameter.copy_(tensor(parameter.shape, salt + 1, 0.25))
    return model


def batch(rank, step):
    """Rank 1 has more samples, and twice as large ones."""
    n = 3 + 2 * rank
    inputs = tensor((n, 2, 4, 4), 10 + 2 * step + rank, 1.0 + rank)
    return inputs, torch.tensor([(i * i + step) % CLASSES for i in range(n)])


def worker(rank, port, results, options):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, WORLD, rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD)
    model = make_model()
    ddp = DistributedDataParallel(model, **options)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(STEPS):
        inputs, targets = batch(rank, step)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(ddp(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    running = torch.cat([model[1].running_mean, model[1].running_var]).tolist()
    model.eval()
    with torch.no_grad():
        evaluated = model(batch(0, 0)[0]).flatten().tolist()
    results[rank] = (losses, running, evaluated)
    dist.barrier()
    dist.destroy_process_group()


def main():
    golden = {"torch": torch.__version__.split("+")[0]}
    with mp.Manager() as manager:
        for name, options in {"default": {}, "own": {"broadcast_buffers": False}}.items():
            results = manager.dict()
            mp.spawn(worker, (free_port(), results, options), nprocs=WORLD)
            losses, running, evaluated = zip(*(results[rank] for rank in range(WORLD)))
            golden[name] = {"losses": losses, "running": running, "evaluated": evaluated[1]}
    OUTPUT.write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    main()
