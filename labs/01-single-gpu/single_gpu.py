"""Lab 01 in Python: python single_gpu.py [TOTAL_EPOCHS [SAVE_EVERY]].

Weights, order and data are those of the Rust program, so the losses are the same but for rounding.
"""

import argparse
import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

MASK = 2**64 - 1


class KeyedRng:
    """The course's random numbers (SplitMix64, keyed by what they are for): a sample depends on its seed and number alone."""

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

    def uniform(self):
        return (self.bits() >> 40) / 2**24

    def normal(self):
        """The sum of twelve uniform numbers, less its mean, is nearly normal."""
        return sum((bits >> 32) + (bits & 2**32 - 1) for bits in (self.bits() for _ in range(6))) / 2**32 - 6


# ANCHOR: data
def toy_set(seed, count=2048):
    """Twenty numbers a sample; the target is their weighted sum, plus a constant and a little noise."""
    inputs, targets = [], []
    for index in range(count):
        rng = KeyedRng(seed, int.from_bytes(b"toy set\0", "big"), index)
        row = [rng.uniform() for _ in range(20)]
        inputs.append(row)
        targets.append([sum(x * (feature - 5) / 10 for feature, x in enumerate(row)) + 0.5 + 0.02 * rng.normal()])
    return TensorDataset(torch.tensor(inputs), torch.tensor(targets))
# ANCHOR_END: data


# ANCHOR: trainer
class Trainer:
    def __init__(self, args):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model = nn.Linear(20, 1)
        torch.manual_seed(args.seed)
        # As tch initializes a layer: the bias first, and weights from a wider range than Python's.
        nn.init.uniform_(model.bias, -1 / math.sqrt(20), 1 / math.sqrt(20))
        nn.init.kaiming_uniform_(model.weight, nonlinearity="relu")
        self.model = model.to(self.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=args.lr)
        self.seed, self.order, data = args.seed, torch.Generator(), toy_set(args.seed)
        self.train_data = DataLoader(data, args.batch_size, sampler=RandomSampler(data, generator=self.order))

    def run_batch(self, inputs, targets):
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.model(inputs), targets)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def run_epoch(self, epoch):
        self.order.manual_seed(self.seed + epoch)  # the order depends on the epoch alone, not on what came before
        total, samples = 0.0, 0
        for inputs, targets in self.train_data:
            total += self.run_batch(inputs.to(self.device), targets.to(self.device)) * len(inputs)
            samples += len(inputs)
        return total / samples

    def train(self, args):
        for epoch in range(args.total_epochs):
            print(f"Epoch {epoch} | Loss: {self.run_epoch(epoch):.4f}", flush=True)
            if (epoch + 1) % args.save_every == 0 or epoch + 1 == args.total_epochs:
                torch.save(self.model.state_dict(), args.checkpoint)
                print(f"Epoch {epoch} | Training checkpoint saved at {args.checkpoint}", flush=True)
# ANCHOR_END: trainer


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("total_epochs", type=int, nargs="?", default=10)
    parser.add_argument("save_every", type=int, nargs="?", default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", default="checkpoint.pt")
    args = parser.parse_args()
    Trainer(args).train(args)
