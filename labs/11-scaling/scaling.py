"""Lab 11 in Python: torchrun --standalone --nproc-per-node=2 scaling.py --data DIR, or the same with lockstep run.

Weights, order and digits are those of the Rust program, so the results are the same but for rounding.
"""

import argparse
import contextlib
import gzip
import math
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def mnist(folder, prefix):
    """The digits of two of MNIST's files, as torchvision.datasets.MNIST with ToTensor and Normalize gives them."""
    read = lambda name, header: bytearray(gzip.open(folder / f"{prefix}-{name}-ubyte.gz").read()[header:])
    images = torch.frombuffer(read("images-idx3", 16), dtype=torch.uint8).view(-1, 1, 28, 28)
    labels = torch.frombuffer(read("labels-idx1", 8), dtype=torch.uint8)
    return TensorDataset((images / 255 - 0.1307) / 0.3081, labels.long())


def network(width, seed):
    layers = [nn.Linear(28 * 28, width), nn.Linear(width, width), nn.Linear(width, 10)]
    torch.manual_seed(seed)
    for layer in layers:
        # As tch initializes a layer: the bias first, and weights from a wider range than Python's.
        bound = 1 / math.sqrt(layer.in_features)
        nn.init.uniform_(layer.bias, -bound, bound)
        nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
    return nn.Sequential(nn.Flatten(), layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])


# ANCHOR: gradients
def gradients(model, images, labels, passes, sums):
    """Leaves the gradient of the mean loss over the batches of all ranks: several passes, and one exchange."""
    parts = list(zip(images.chunk(passes), labels.chunk(passes)))
    for number, (inputs, targets) in enumerate(parts):
        last = number + 1 == len(parts)
        # DDP decides in the forward pass whether the backward pass exchanges, so both are inside.
        with contextlib.nullcontext() if last else model.no_sync():
            logits = model(inputs)
            loss = F.cross_entropy(logits, targets)
            (loss * len(targets) / len(labels)).backward()
        sums[0] += loss.detach() * len(targets)
        sums[1] += (logits.argmax(1) == targets).sum()
        sums[2] += len(targets)
# ANCHOR_END: gradients


# ANCHOR: train
def train(args):
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    dist.init_process_group("nccl" if on_gpu else "gloo")
    train_set = mnist(args.data, "train")

    model = DistributedDataParallel(network(args.width, args.seed).to(device), bucket_cap_mb=args.bucket_mb)
    if args.hook == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    sampler = DistributedSampler(train_set, seed=args.seed)
    loader = DataLoader(train_set, batch_size=args.batch_size, sampler=sampler)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        sums = torch.zeros(3, dtype=torch.float64, device=device)  # loss, right answers, samples
        for images, labels in loader:
            optimizer.zero_grad()
            gradients(model, images.to(device), labels.to(device), args.accumulate, sums)
            optimizer.step()
    dist.all_reduce(sums)
    if dist.get_rank() == 0:
        loss, accuracy = (sums[:2] / sums[2]).tolist()
        print(f"final loss {loss:.4f}, accuracy {100 * accuracy:.1f} %, over all samples of the last epoch", flush=True)
    dist.barrier()  # PyTorch 2.11 may hang if a thread of Gloo lets go of a tensor while the group ends,
    time.sleep(0.1)  # for which it needs Python's lock: the last rank to arrive at the barrier leaves it no time
    dist.destroy_process_group()
# ANCHOR_END: train


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--accumulate", type=int, default=1, help="passes into which a rank divides its batch")
    parser.add_argument("--bucket-mb", type=float, default=25, help="capacity of a bucket of gradients")
    parser.add_argument("--hook", choices=["none", "fp16"], default="none")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, required=True, help="a folder with MNIST's four files")
    train(parser.parse_args())
