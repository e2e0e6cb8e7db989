"""Golden values for crates/lockstep/tests/it/ddp_golden.rs, and virtual_ranks.rs next to it: the loss of every step of a small DDP run in Python.

Run it with a Python that has PyTorch 2.11; it rewrites ddp.json. Two ranks on Gloo train a two-layer
network on 50 samples (which two ranks and batches of 8 do not divide evenly) for three epochs; so do four ranks, with whom
the virtual ranks are compared. Weights and samples follow
integer formulas, so that the Rust side makes the same bits without a file.
"""

import json
import os
import pathlib

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

SAMPLES, FEATURES, HIDDEN, CLASSES, BATCH, EPOCHS, WORLD = 50, 20, 16, 4, 8, 3, 2
OUTPUT = pathlib.Path(__file__).with_name("ddp.json")


def formula(count, salt):
    """Numbers in [-1, 1] in steps of 1/1000."""
    return [((i * 7919 + salt * 104729) % 2001 - 1000) / 1000 for i in range(count)]


def tensor(shape, salt, scale=1.0):
    count = torch.Size(shape).numel()
    return (torch.tensor(formula(count, salt), dtype=torch.float64) * scale).float().reshape(shape)


def make_model():
    model = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))
    with torch.no_grad():
        for salt, parameter in enumerate(model.parameters()):
            parameter.copy_(tensor(parameter.shape, salt + 1, 0.25))
    return model


def make_data():
    targets = torch.tensor([(i * i + i // 3) % CLASSES for i in range(SAMPLES)])
    return TensorDataset(tensor((SAMPLES, FEATURES), 9), targets)


def worker(rank, port, results, options, world=WORLD):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, world, rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    ddp = DistributedDataParallel(make_model(), **options)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    data = make_data()
    sampler = DistributedSampler(data, world, rank, shuffle=True, seed=3)
    losses = []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for inputs, targets in DataLoader(data, BATCH, sampler=sampler):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(ddp(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    results[rank] = losses
    dist.barrier()
    dist.destroy_process_group()


def free_port():
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def main():
    with mp.Manager() as manager:
        runs = {}
        for name, options, world in [
            ("default", {}, WORLD),
            ("small_buckets", {"bucket_cap_mb": 0.0005}, WORLD),
            ("bucket_view", {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.0005}, WORLD),
            ("four_ranks", {}, 4),
        ]:
            results = manager.dict()
            mp.spawn(worker, (free_port(), results, options, world), nprocs=world)
            runs[name] = [results[rank] for rank in range(world)]
    OUTPUT.write_text(json.dumps({"torch": torch.__version__.split("+")[0], "losses": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
