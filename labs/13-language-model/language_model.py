"""Lab 13 in Python: torchrun --standalone --nproc-per-node=2 language_model.py --data FOLDER, or the same with lockstep run.

FOLDER has train.txt and validation.txt; each character is a token. Weights, order and steps are those of the Rust program with --characters, so
the losses are the same but for rounding. On the CPU, over Gloo.
"""

import argparse
import contextlib
import math
import pathlib
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset

IGNORED = -100


class Windows(Dataset):
    """Window i has the tokens from i * window on as inputs, and the token after each as its target."""

    def __init__(self, tokens, window):
        self.tokens, self.window = tokens, window

    def __len__(self):
        return math.ceil((len(self.tokens) - 1) / self.window)

    def __getitem__(self, index):
        begin = index * self.window
        inputs = self.tokens[begin : begin + self.window]
        targets = self.tokens[begin + 1 : begin + self.window + 1]
        inputs = inputs[: len(targets)]
        return self.padded(inputs, 0), self.padded(targets, IGNORED)

    def padded(self, tokens, filler):
        return torch.tensor(tokens + [filler] * (self.window - len(tokens)))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.attn_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.mlp_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x))))

    def attention(self, x):
        n, t, width = x.shape
        parts = self.c_attn(x).view(n, t, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts, is_causal=True)
        return self.attn_proj(mixed.transpose(1, 2).reshape(n, t, width))


class Gpt(nn.Module):
    def __init__(self, vocabulary, args):
        super().__init__()
        self.wte = nn.Parameter(torch.empty(vocabulary, args.width))
        self.wpe = nn.Parameter(torch.empty(args.window, args.width))
        self.blocks = nn.ModuleList(Block(args.width, args.heads) for _ in range(args.layers))
        self.ln_f = nn.LayerNorm(args.width)

    def forward(self, tokens):
        x = self.wte[tokens] + self.wpe[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.ln_f(x) @ self.wte.T

    @torch.no_grad()
    def draw(self, seed):
        """The initial weights, as the Rust program draws them."""
        torch.manual_seed(seed)
        adds = 0.02 / math.sqrt(2 * len(self.blocks))
        layers = [(self.wte, 0.02), (self.wpe, 0.02)]
        for block in self.blocks:
            layers += [(block.c_attn, 0.02), (block.attn_proj, adds), (block.c_fc, 0.02), (block.mlp_proj, adds)]
        for layer, deviation in layers:
            if isinstance(layer, nn.Linear):
                layer.bias.zero_()
                layer = layer.weight
            layer.copy_(torch.randn(layer.shape) * deviation)
        return self


def learning_rate(args, done, of):
    """The rate after `done` of all windows."""
    rising = of // 20
    if done < rising:
        return args.lr * (0.1 + 0.9 * done / rising)
    part = (done - rising) / (of - rising)
    return 0.1 * args.lr + 0.9 * args.lr * (1 + math.cos(math.pi * part)) / 2


def losses(model, inputs, targets):
    """The sum over all tokens that count."""
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")


# ANCHOR: step
def step(model, optimizer, micro, clip):
    """One step of several micro-batches, in which each token of all ranks weighs the same."""
    optimizer.zero_grad()
    count = torch.tensor(float(sum((targets != IGNORED).sum() for _, targets in micro)))
    dist.all_reduce(count)
    for number, (inputs, targets) in enumerate(micro):
        last = number + 1 == len(micro)
        with contextlib.nullcontext() if last else model.no_sync():
            # DDP averages over the ranks.
            (losses(model, inputs, targets) * dist.get_world_size() / count).backward()
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
# ANCHOR_END: step


def evaluate(model, held_out, batch_size=128):
    """Each rank takes a share of the windows; the sums of loss, right tokens and tokens are added."""
    share = range(dist.get_rank(), len(held_out), dist.get_world_size())
    sums = torch.zeros(3, dtype=torch.float64)
    with torch.no_grad():
        for inputs, targets in DataLoader(Subset(held_out, share), batch_size):
            logits = model.module(inputs)
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")
            sums += torch.stack([loss, (logits.argmax(-1) == targets).sum(), (targets != IGNORED).sum()])
    dist.all_reduce(sums)
    return sums


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--characters", action="store_true", help="always so")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--clip", type=float, default=1.0)
    numbers = {"epochs": 8, "window": 64, "samples": None, "held-out": None, "batch-size": 8, "micro-batches": 2}
    for name, default in (numbers | {"layers": 2, "heads": 4, "width": 96, "seed": 0}).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    train, validation = ((args.data / f"{name}.txt").read_text() for name in ("train", "validation"))
    numbers = {character: number for number, character in enumerate(sorted(set(train + validation)))}

    def windows(text, most):
        tokens = [numbers[character] for character in text]
        return Windows(tokens[: most * args.window + 1] if most else tokens, args.window)

    train, held_out = windows(train, args.samples), windows(validation, args.held_out)
    sampler = DistributedSampler(train, seed=args.seed)
    loader = DataLoader(train, args.batch_size, sampler=sampler)
    model = DistributedDataParallel(Gpt(len(numbers), args).draw(args.seed))
    optimizer = torch.optim.AdamW(model.parameters(), args.lr)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for number, (inputs, targets) in enumerate(loader):
            done = epoch * len(train) + number * args.batch_size * dist.get_world_size()
            optimizer.param_groups[0]["lr"] = learning_rate(args, done, args.epochs * len(train))
            micro = list(zip(inputs.chunk(args.micro_batches), targets.chunk(args.micro_batches)))
            step(model, optimizer, micro, args.clip)
        sums = evaluate(model, held_out)
        loss, accuracy = (sums[:2] / sums[2]).tolist()
        if dist.get_rank() == 0:
            print(f"Epoch: {epoch}, Accuracy: {accuracy:.4f}, Loss: {loss:.4f}", flush=True)
    dist.barrier()  # PyTorch 2.11 may hang if a thread of Gloo lets go of a tensor while the group ends,
    time.sleep(0.1)  # for which it needs Python's lock: the last rank to arrive at the barrier leaves it no time
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
