#!/usr/bin/env python3
"""Writes gpt.json: a small GPT in PyTorch, its logits and gradients, and some steps of its training.

Needs PyTorch 2.11 (the CPU build will do). The model is written plainly: attention by a matrix of scores with a mask. Weights follow
`formula`, salted by the number of the parameter in the order of names. Everything is in double precision, except "bfloat16": the loss under
autocast, with parameters in float32.

A step takes two micro-batches with different numbers of targets: each loss is a sum, divided by the number of targets of both. Then
gradients are clipped (`clip_grad_norm_`), AdamW steps, and the rate follows `SequentialLR` of `LinearLR` and `CosineAnnealingLR`.
"""

import json
import math
import pathlib
import warnings

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import lr_scheduler

import ddp

OUT = pathlib.Path(__file__).with_name("gpt.json")
VOCABULARY, CONTEXT, LAYERS, HEADS, WIDTH = 11, 8, 2, 2, 8
STEPS, WARMUP, RATE, LEAST, NORM = 6, 2, 0.02, 0.002, 0.5


def formula(shape, salt, scale):
    """In double precision."""
    return torch.tensor(ddp.formula(math.prod(shape), salt), dtype=torch.double).reshape(shape) * scale


class Block(nn.Module):
    def __init__(self, rotary):
        super().__init__()
        self.rotary = rotary
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = nn.ModuleDict({"c_attn": nn.Linear(WIDTH, 3 * WIDTH), "c_proj": nn.Linear(WIDTH, WIDTH)})
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(WIDTH, 4 * WIDTH), "c_proj": nn.Linear(4 * WIDTH, WIDTH)})

    def attention(self, x):
        n, t, width = x.shape
        q, k, v = (part.view(n, t, HEADS, width // HEADS).transpose(1, 2) for part in self.attn.c_attn(x).split(width, -1))
        if self.rotary:
            q, k = rotate(q), rotate(k)
        scores = q @ k.transpose(-2, -1) / math.sqrt(width // HEADS)
        scores = scores.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), -math.inf)
        return self.attn.c_proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(n, t, width))

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return x + self.mlp.c_proj(F.gelu(self.mlp.c_fc(self.ln_2(x))))


def rotate(x):
    """By complex numbers: the model in Rust does it by sines and cosines."""
    t, size = x.shape[-2:]
    speeds = 10_000.0 ** (-2 * torch.arange(size // 2, dtype=torch.double) / size)
    turns = torch.polar(torch.ones(t, size // 2, dtype=torch.double), torch.outer(torch.arange(t, dtype=torch.double), speeds))
    turned = torch.complex(*x.double().chunk(2, -1)) * turns
    return torch.cat([turned.real, turned.imag], -1).to(x.dtype)


class Gpt(nn.Module):
    def __init__(self, rotary):
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, WIDTH)
        self.wpe = None if rotary else nn.Embedding(CONTEXT, WIDTH)
        self.h = nn.ModuleList(Block(rotary) for _ in range(LAYERS))
        self.ln_f = nn.LayerNorm(WIDTH)

    def forward(self, tokens):
        x = self.wte(tokens)
        if self.wpe is not None:
            x = x + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            x = block(x)
        return self.ln_f(x) @ self.wte.weight.T


def model(rotary):
    gpt = Gpt(rotary).double()
    for salt, (name, param) in enumerate(sorted(gpt.named_parameters())):
        param.data = formula(param.shape, salt, 0.4) + (1.0 if name.endswith(("ln_1.weight", "ln_2.weight", "ln_f.weight")) else 0.0)
    return gpt


def batch(n, t, salt, ignored):
    tokens = torch.tensor([(i * i * 3 + i * 7 + salt) % VOCABULARY for i in range(n * (t + 1))]).reshape(n, t + 1)
    targets = tokens[:, 1:].clone()
    if ignored:
        targets[-1, -ignored:] = -100
    return tokens[:, :-1], targets


BATCHES = [batch(2, 6, 1, 0), batch(2, 6, 4, 5)]


def loss_sum(gpt, inputs, targets):
    return F.cross_entropy(gpt(inputs).reshape(-1, VOCABULARY).double(), targets.reshape(-1), reduction="sum")


def run(rotary):
    gpt = model(rotary)
    inputs, targets = BATCHES[1]
    loss = loss_sum(gpt, inputs, targets) / (targets != -100).sum()
    loss.backward()
    out = {
        "rotary": rotary,
        "logits": gpt(inputs).flatten().tolist(),
        "loss": loss.item(),
        "grads": {name: [param.grad.norm().item(), *param.grad.flatten()[:3].tolist()] for name, param in gpt.named_parameters()},
    }
    single = model(rotary).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out["bfloat16"] = F.cross_entropy(single(inputs).reshape(-1, VOCABULARY), targets.reshape(-1)).item()
    optimizer = torch.optim.AdamW(gpt.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1)
    rising = lr_scheduler.LinearLR(optimizer, 0.25, 1.0, WARMUP)
    falling = lr_scheduler.CosineAnnealingLR(optimizer, STEPS - WARMUP, LEAST)
    schedule = lr_scheduler.SequentialLR(optimizer, [rising, falling], [WARMUP])
    count = sum(int((targets != -100).sum()) for _, targets in BATCHES)
    out["steps"] = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        total = 0.0
        for inputs, targets in BATCHES:
            loss = loss_sum(gpt, inputs, targets) / count
            loss.backward()
            total += loss.item()
        norm = nn.utils.clip_grad_norm_(gpt.parameters(), NORM).item()
        out["steps"].append({"loss": total, "norm": norm, "lr": schedule.get_last_lr()[0]})
        optimizer.step()
        schedule.step()
    return out


warnings.simplefilter("ignore")
torch.set_num_threads(1)
runs = [run(rotary) for rotary in (False, True)]
OUT.write_text(json.dumps({"torch": torch.__version__, "runs": runs}) + "\n")
