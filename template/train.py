"""The same training in Python: `torchrun --standalone --nproc-per-node=2 train.py`, or the same with `lockstep run`.

Weights, order and data are those of the Rust program, so the losses are the same but for rounding.
"""

import argparse
import math
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

CLASSES = 3


class Spirals(Dataset):
    def __init__(self, numbers):
        self.numbers = numbers

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, index):
        number = self.numbers[index]
        target = number % CLASSES
        radius = (number * 383 % 997 + 1) / 997
        angle = radius * 4.0 + target * (math.tau / CLASSES)
        point = torch.tensor([radius * math.cos(angle), radius * math.sin(angle)], dtype=torch.float64)
        return point.float(), target


def network(seed):
    layers = [nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, CLASSES)]
    # As tch initializes a layer: the bias is drawn first.
    torch.manual_seed(seed)
    for layer in layers[::2]:
        inputs = layer.in_features
        nn.init.uniform_(layer.bias, -1 / math.sqrt(inputs), 1 / math.sqrt(inputs))
        nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
    return nn.Sequential(*layers)


def evaluate(model, test_set, device):
    """Each rank takes a share of the samples; the sums of loss, right answers and samples are added."""
    share = range(dist.get_rank(), len(test_set), dist.get_world_size())
    sums = torch.zeros(3, dtype=torch.float64, device=device)
    with torch.no_grad():
        for points, targets in DataLoader(torch.utils.data.Subset(test_set, share), 128):
            logits = model.module(points.to(device))
            targets = targets.to(device)
            loss = nn.functional.cross_entropy(logits, targets, reduction="sum")
            sums += torch.stack([loss, (logits.argmax(1) == targets).sum(), torch.tensor(len(targets), device=device)])
    dist.all_reduce(sums)
    return sums


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    dist.init_process_group("nccl" if on_gpu else "gloo")
    train_set, test_set = Spirals(range(900)), Spirals(range(900, 1200))
    sampler = DistributedSampler(train_set, seed=args.seed)
    loader = DataLoader(train_set, args.batch_size, sampler=sampler)

    model = DistributedDataParallel(network(args.seed).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for points, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(points.to(device)), targets.to(device))
            loss.backward()
            optimizer.step()
        sums = evaluate(model, test_set, device)
        loss, accuracy = (sums[:2] / sums[2]).tolist()
        if dist.get_rank() == 0:
            print(f"Epoch: {epoch}, Accuracy: {accuracy:.4f}, Loss: {loss:.6f}", flush=True)
    dist.barrier()  # PyTorch 2.11 may hang if a thread of Gloo lets go of a tensor while the group ends,
    time.sleep(0.1)  # for which it needs Python's lock: the last rank to arrive at the barrier leaves it no time
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
