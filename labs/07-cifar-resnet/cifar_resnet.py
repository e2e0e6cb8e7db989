"""Lab 07 in Python: torchrun --standalone --nproc-per-node=2 cifar_resnet.py --data DIR, or the same with lockstep run.

Weights, order, crops and flips are those of the Rust program, so the results are the same but for rounding.
"""

import argparse
import os
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torchvision
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset
from torchvision.transforms.functional import normalize

MASK = 2**64 - 1


class KeyedRng:
    """The course's random numbers: SplitMix64, keyed by what they are for."""

    def __init__(self, *key):
        self.state = self.mix(0x9E3779B97F4A7C15 ^ len(key))
        for part in key:
            self.state = self.mix(self.state ^ part) + 0x9E3779B97F4A7C15 & MASK

    @staticmethod
    def mix(z):
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
        return z ^ z >> 31

    def bits(self):
        self.state = self.state + 0x9E3779B97F4A7C15 & MASK
        return self.mix(self.state)

    def below(self, n):
        return self.bits() * n >> 64

    def uniform(self):
        return (self.bits() >> 40) / 2**24


# ANCHOR: data
class Cifar(Dataset):
    """CIFAR-10's binary files, a byte for the label and 3,072 for the picture, since torchvision reads the pickled ones only."""

    def __init__(self, files, seed=None):
        records = np.concatenate([np.fromfile(file, dtype=np.uint8) for file in files]).reshape(-1, 3073)
        self.labels = torch.from_numpy(records[:, 0].astype(np.int64))
        self.pictures = torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32))
        self.seed, self.epoch = seed, 0

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        picture = self.pictures[index]
        if self.seed is not None:
            picture = self.crop_and_flip(picture, index)
        return normalize(picture / 255, (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)), self.labels[index]

    def crop_and_flip(self, picture, index):
        """RandomCrop(32, padding=4) and RandomHorizontalFlip(), drawn again in each epoch and the same after a resume."""
        rng = KeyedRng(self.seed, int.from_bytes(b"augments", "big"), self.epoch, index)
        top, left = rng.below(9), rng.below(9)
        picture = F.pad(picture, (4, 4, 4, 4))[:, top : top + 32, left : left + 32]
        return picture.flip(-1) if rng.uniform() < 0.5 else picture
# ANCHOR_END: data


# ANCHOR: model
def resnet18(seed):
    model = torchvision.models.resnet18(num_classes=10)
    torch.manual_seed(seed)
    for layer in model.modules():  # with torchvision's own distributions, but layer by layer
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(layer, nn.Linear):
            layer.reset_parameters()
    return model
# ANCHOR_END: model


# ANCHOR: evaluate
@torch.no_grad()
def evaluate(model, test_set, device):
    """Each rank takes a share of the pictures, none twice; the sums of loss, right answers and samples are added."""
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)  # each rank has running means of its own batches
    model.eval()
    sums = torch.zeros(3, dtype=torch.float64, device=device)
    share = Subset(test_set, range(dist.get_rank(), len(test_set), dist.get_world_size()))
    for pictures, labels in DataLoader(share, batch_size=128):
        logits, labels = model.module(pictures.to(device)), labels.to(device)
        add(sums, logits, labels, F.cross_entropy(logits, labels))
    model.train()
    dist.all_reduce(sums)
    return sums
# ANCHOR_END: evaluate


def add(sums, logits, labels, loss):
    """Adds a batch's loss, right answers and size."""
    sums[0] += loss.detach() * len(labels)
    sums[1] += (logits.argmax(1) == labels).sum()
    sums[2] += len(labels)


# ANCHOR: train
def train(args):
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    dist.init_process_group("nccl" if on_gpu else "gloo")
    train_set = Cifar(sorted(args.data.glob("data_batch_*.bin")), args.seed)
    test_set = Cifar([args.data / "test_batch.bin"])

    memory_format = torch.channels_last if args.channels_last else torch.contiguous_format
    model = DistributedDataParallel(resnet18(args.seed).to(device, memory_format=memory_format))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-5)
    sampler = DistributedSampler(train_set, seed=args.seed)
    loader = DataLoader(train_set, batch_size=args.batch_size, sampler=sampler, pin_memory=on_gpu)

    for epoch in range(args.epochs + 1):
        sums = evaluate(model, test_set, device)
        loss, accuracy = (sums[:2] / sums[2]).tolist()
        if dist.get_rank() == 0:
            print(f"Epoch: {epoch}, Accuracy: {accuracy:.4f}, Loss: {loss:.4f}", flush=True)
        if epoch == args.epochs:
            break
        sampler.set_epoch(epoch)
        train_set.epoch = epoch
        sums = torch.zeros(3, dtype=torch.float64, device=device)
        for pictures, labels in loader:
            optimizer.zero_grad()
            pictures = pictures.to(device, non_blocking=True, memory_format=memory_format)
            logits, labels = model(pictures), labels.to(device, non_blocking=True)
            loss = F.cross_entropy(logits, labels)
            loss.backward()
            optimizer.step()
            add(sums, logits, labels, loss)
        dist.all_reduce(sums)
        loss, accuracy = (sums[:2] / sums[2]).tolist()
        if dist.get_rank() == 0:
            print(f"Epoch {epoch} | train loss: {loss:.4f}, train accuracy: {accuracy:.4f}", flush=True)
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), args.model)
    dist.barrier()  # PyTorch 2.11 may hang if a thread of Gloo lets go of a tensor while the group ends,
    time.sleep(0.1)  # for which it needs Python's lock: the last rank to arrive at the barrier leaves it no time
    dist.destroy_process_group()
# ANCHOR_END: train


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.005)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, required=True, help="a folder with CIFAR-10's binary files")
    parser.add_argument("--channels-last", action="store_true", help="keep the channels last in memory")
    parser.add_argument("--model", default="resnet_distributed.pt")
    train(parser.parse_args())
