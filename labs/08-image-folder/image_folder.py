"""Lab 08 in Python: torchrun --standalone --nproc-per-node=2 image_folder.py --data DIR, or the same with lockstep run.

Weights and order are those of the Rust program. AutoAugment draws its own random numbers, so the epochs differ from Rust's as two
seeds do. The file of the best model is the same format: --epochs 0 measures what the Rust program saved.
"""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torchvision
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset
from torchvision import transforms
from torchvision.datasets import ImageFolder


# ANCHOR: data
def photographs(folder, size, augment):
    steps = [transforms.AutoAugment(transforms.AutoAugmentPolicy.IMAGENET)] if augment else []
    steps += [transforms.Resize((size, size)), transforms.ToTensor()]
    steps += [transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
    return ImageFolder(folder, transforms.Compose(steps))
# ANCHOR_END: data


# ANCHOR: model
def resnet34(classes, seed, pretrained):
    model = torchvision.models.resnet34()
    features = model.fc.in_features
    model.fc = nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.Linear(features, classes))
    torch.manual_seed(seed)
    for layer in model.modules():  # with torchvision's own distributions, but layer by layer
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(layer, nn.Linear):
            layer.reset_parameters()
    if pretrained:
        weights = torch.load(pretrained, map_location="cpu", weights_only=True)
        model.load_state_dict({name: tensor for name, tensor in weights.items() if not name.startswith("fc.")}, strict=False)
    return model
# ANCHOR_END: model


CRITERION = nn.CrossEntropyLoss(label_smoothing=0.1)


# ANCHOR: evaluate
@torch.no_grad()
def evaluate(model, data, batch_size, device):
    """Each rank takes a share of the photographs, none twice; the sums of loss, right answers and samples are added."""
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)  # each rank has running means of its own batches
    model.eval()
    sums = torch.zeros(3, dtype=torch.float64, device=device)
    share = Subset(data, range(dist.get_rank(), len(data), dist.get_world_size()))
    for pictures, labels in DataLoader(share, batch_size):
        logits, labels = model.module(pictures.to(device)), labels.to(device)
        sums[0] += CRITERION(logits, labels) * len(labels)
        sums[1] += (logits.argmax(1) == labels).sum()
        sums[2] += len(labels)
    model.train()
    dist.all_reduce(sums)
    return sums
# ANCHOR_END: evaluate


# ANCHOR: train
def train(args):
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    dist.init_process_group("nccl" if on_gpu else "gloo")
    train_set = photographs(args.data / "Train", args.image_size, augment=True)
    validation_set = photographs(args.data / "Validation", args.image_size, augment=False)

    network = resnet34(len(train_set.classes), args.seed, args.pretrained)
    model = DistributedDataParallel(network.to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.1, patience=5, min_lr=1e-8)
    sampler = DistributedSampler(train_set, seed=args.seed)
    loader = DataLoader(train_set, args.batch_size, sampler=sampler, num_workers=args.workers)

    best = -1.0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for pictures, labels in loader:
            optimizer.zero_grad()
            loss = CRITERION(model(pictures.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
        sums = evaluate(model, validation_set, args.batch_size, device)
        loss, accuracy = (sums[:2] / sums[2]).tolist()
        schedule.step(loss)  # the loss of all ranks: one rank's own would give each its own learning rate
        say(f"(Epoch {epoch + 1}/{args.epochs}) Val loss: {loss:.4f}, Val accuracy: {accuracy:.4f}")
        if accuracy > best and dist.get_rank() == 0:
            save_file(network.state_dict(), args.best)
        best = max(best, accuracy)

    dist.barrier()  # rank 0 may still be writing
    missing, _ = network.load_state_dict(load_file(args.best), strict=False)
    assert all(name.endswith("num_batches_tracked") for name in missing), missing  # a counter that is never read here
    sums = evaluate(model, validation_set, args.batch_size, device)
    loss, accuracy = (sums[:2] / sums[2]).tolist()
    say(f"Best model (val loss: {loss:.4f}, val accuracy: {accuracy:.4f}) is in {args.best}")
    dist.barrier()  # PyTorch 2.11 may hang if a thread of Gloo lets go of a tensor while the group ends,
    time.sleep(0.1)  # for which it needs Python's lock: the last rank to arrive at the barrier leaves it no time
    dist.destroy_process_group()
# ANCHOR_END: train


def say(line):
    if dist.get_rank() == 0:
        print(line, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--image-size", type=int, default=244)
    parser.add_argument("--data", type=Path, required=True, help="a folder with Train/ and Validation/, each with a folder per class")
    parser.add_argument("--pretrained", help="a .pth file as torchvision publishes them")
    parser.add_argument("--best", type=Path, default=Path("best_model.safetensors"))
    train(parser.parse_args())
