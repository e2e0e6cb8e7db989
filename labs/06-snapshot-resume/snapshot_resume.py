"""Lab 06 in Python: torchrun --standalone --nproc-per-node=2 snapshot_resume.py --data DIR, or the same with lockstep run.

Kill it and start it again: it goes on after the last epoch that it saved, and ends with the same results.
"""

import argparse
import gzip
import math
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset


# ANCHOR: snapshots
def save_snapshot(path, epochs_done, model, optimizer):
    """Rank 0 writes a new file and renames it: a reader finds the old one or the new one, never half of one."""
    if dist.get_rank() == 0:
        snapshot = {"epochs": epochs_done, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
        partial = path.with_suffix(".partial")
        with partial.open("wb") as file:
            torch.save(snapshot, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)


def load_snapshot(path, model, optimizer, device):
    """Returns the epoch to go on with. All ranks read the same file, so all agree."""
    if not path.exists():
        return 0
    snapshot = torch.load(path, map_location=device, weights_only=True)
    model.module.load_state_dict(snapshot["model"])
    optimizer.load_state_dict(snapshot["optimizer"])
    if dist.get_rank() == 0:
        print(f"Resuming training from snapshot at Epoch {snapshot['epochs']}", flush=True)
    return snapshot["epochs"]
# ANCHOR_END: snapshots


# ANCHOR: train
def train(args, device):
    train_set, test_set = mnist(args.data, "train"), mnist(args.data, "t10k")

    model = DistributedDataParallel(initialize_as_tch(ConvNet(), args.seed).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    sampler = DistributedSampler(train_set, seed=args.seed)
    loader = DataLoader(train_set, batch_size=args.batch_size, sampler=sampler)

    start = load_snapshot(args.snapshot, model, optimizer, device)
    dist.barrier()  # no rank may replace the file before all have read it
    for epoch in range(start, args.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
        sums = evaluate(model, test_set, device)
        loss, accuracy = (sums[:2] / sums[2]).tolist()
        if dist.get_rank() == 0:
            print(f"Epoch: {epoch}, Accuracy: {accuracy:.4f}, Loss: {loss:.4f}", flush=True)
        save_snapshot(args.snapshot, epoch + 1, model, optimizer)


def join():
    """Joins the process group; returns this rank's device."""
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    return torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")


def leave():
    dist.barrier()  # PyTorch 2.11 may hang if a thread of Gloo lets go of a tensor while the group ends,
    time.sleep(0.1)  # for which it needs Python's lock: the last rank to arrive at the barrier leaves it no time
    dist.destroy_process_group()
# ANCHOR_END: train


# The digits, the network and the evaluation of lab 03.


def mnist(folder, prefix):
    """The digits of two of MNIST's files, as torchvision.datasets.MNIST with ToTensor and Normalize gives them."""
    read = lambda name, header: bytearray(gzip.open(folder / f"{prefix}-{name}-ubyte.gz").read()[header:])
    images = torch.frombuffer(read("images-idx3", 16), dtype=torch.uint8).view(-1, 1, 28, 28)
    labels = torch.frombuffer(read("labels-idx1", 8), dtype=torch.uint8)
    return TensorDataset((images / 255 - 0.1307) / 0.3081, labels.long())


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc1 = nn.Linear(32 * 7 * 7, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


def initialize_as_tch(model, seed):
    """Python's defaults are others: it draws a layer's weights first, from a narrower range, and the biases of convolutions."""
    torch.manual_seed(seed)
    for layer in model.children():
        if isinstance(layer, nn.Conv2d):
            nn.init.zeros_(layer.bias)
        else:
            bound = 1 / math.sqrt(layer.in_features)
            nn.init.uniform_(layer.bias, -bound, bound)
        nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
    return model


@torch.no_grad()
def evaluate(model, test_set, device):
    """Each rank takes a share of the digits, none twice; the sums of loss, right answers and samples are added."""
    sums = torch.zeros(3, dtype=torch.float64, device=device)
    share = Subset(test_set, range(dist.get_rank(), len(test_set), dist.get_world_size()))
    for images, labels in DataLoader(share, batch_size=128):
        logits, labels = model.module(images.to(device)), labels.to(device)
        sums[0] += F.cross_entropy(logits, labels, reduction="sum")
        sums[1] += (logits.argmax(1) == labels).sum()
        sums[2] += len(labels)
    dist.all_reduce(sums)
    return sums


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, required=True, help="a folder with MNIST's four files")
    parser.add_argument("--snapshot", type=Path, default=Path("snapshot.pt"))
    return parser.parse_args()


if __name__ == "__main__":
    args = arguments()
    train(args, join())
    leave()
