"""Lab 12 in Python: torchrun --standalone --nproc-per-node=2 parallelism.py --scheme sharded, or the same with lockstep run.

Weights, sentences and batches are those of the Rust program, so the losses are the same but for rounding. On the CPU, over Gloo.
"""

import argparse
import functools
import time

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as differentiable
from torch import nn
from torch.distributed._functional_collectives import all_gather_tensor_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

FEATURES, HEADS, VOCABULARY, CONTEXT = 48, 12, 96, 32
EXPERTS, CAPACITY, BALANCE = 12, 2.0, 0.01


# ANCHOR: model
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(FEATURES, 3 * FEATURES), nn.Linear(FEATURES, FEATURES)
        self.fc1, self.fc2 = nn.Linear(FEATURES, 4 * FEATURES), nn.Linear(4 * FEATURES, FEATURES)

    def forward(self, x):
        x = x + self.out(attention(self.qkv(normalized(x))))
        return x + self.inner(normalized(x))

    def inner(self, x):
        return self.fc2(F.gelu(self.fc1(x)))


class Transformer(nn.Module):
    """All blocks, or those of a pipeline's stage: the embedding belongs to the first block, the head to the last."""

    def __init__(self, blocks, which, block=Block):
        super().__init__()
        self.embedding = self.positions = self.head = None
        self.mine = slice(None)  # of each sequence
        if which.start == 0:
            self.embedding = nn.Embedding(VOCABULARY, FEATURES)
            self.positions = nn.Parameter(torch.empty(CONTEXT, FEATURES))
        self.blocks = nn.ModuleDict({str(number): block() for number in which})
        if which.stop == blocks:
            self.head = nn.Linear(FEATURES, VOCABULARY)

    def forward(self, x):
        if self.embedding is not None:
            x = self.embedding(x) + self.positions[self.mine]
        for block in self.blocks.values():
            x = block(x)
        return x if self.head is None else self.head(normalized(x))


def normalized(x):
    return F.layer_norm(x, (FEATURES,))


def attention(qkv):
    """The numbers of a head stand next to each other, so that to divide the layer's outputs divides the heads."""
    n, t, width = qkv.shape[0], qkv.shape[1], FEATURES // HEADS
    queries, keys, values = qkv.view(n, t, -1, 3, width).permute(3, 0, 2, 1, 4)
    return F.scaled_dot_product_attention(queries, keys, values, is_causal=True).transpose(1, 2).reshape(n, t, -1)
# ANCHOR_END: model


# ANCHOR: context
class ContextBlock(Block):
    """Has some positions of each sequence, and gathers the keys and values of all, as Llama 3 was trained: the same as a ring, in one
    message."""

    def forward(self, x):
        world, width = dist.get_world_size(), FEATURES // HEADS
        n, t = x.shape[:2]
        queries, keys, values = self.qkv(normalized(x)).view(n, t, HEADS, 3, width).permute(3, 0, 2, 1, 4)
        # Not all_gather of torch.distributed.nn: over Gloo, its backward mixes up the numbers of a gradient that is not contiguous (2.11).
        keys, values = (all_gather_tensor_autograd(part.contiguous(), 2, dist.group.WORLD) for part in (keys, values))
        all_positions = torch.cat([positions(rank, world) for rank in range(world)])
        earlier = all_positions <= positions(dist.get_rank(), world).unsqueeze(1)
        attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=earlier)
        x = x + self.out(attended.transpose(1, 2).reshape(n, t, FEATURES))
        return x + self.inner(normalized(x))


def positions(rank, world):
    """Two chunks of a sequence, from both ends, so that all ranks have as much to do."""
    chunks = torch.arange(CONTEXT).chunk(2 * world)
    return torch.cat([chunks[rank], chunks[2 * world - 1 - rank]])
# ANCHOR_END: context


# ANCHOR: experts
class ExpertBlock(Block):
    """Has a part of the experts, and the router. Each token goes to its most probable expert, if that has a place for it."""

    def __init__(self):
        super().__init__()
        self.fc1 = self.fc2 = None
        self.router = nn.Parameter(torch.empty(EXPERTS, FEATURES))
        self.experts = nn.ModuleDict({"fc1": Linears(FEATURES, 4 * FEATURES), "fc2": Linears(4 * FEATURES, FEATURES)})

    def inner(self, x):
        tokens, rank, own = x.flatten(0, 1), dist.get_rank(), EXPERTS // dist.get_world_size()
        probabilities = F.linear(tokens, self.router).softmax(-1)
        probability, expert = probabilities.max(-1)
        chosen = [torch.zeros(EXPERTS, dtype=torch.int64) for _ in range(dist.get_world_size())]
        dist.all_gather(chosen, torch.bincount(expert, minlength=EXPERTS))
        chosen = torch.stack(chosen)
        self.balance = EXPERTS * (chosen.sum(0) / chosen.sum() * probabilities.mean(0)).sum()
        places = -(-CAPACITY * chosen.sum().item() // EXPERTS) - (chosen.cumsum(0) - chosen)  # that lower ranks leave
        kept = torch.minimum(places.clamp(min=0).long(), chosen)
        sent = torch.cat([(expert == number).nonzero()[:count, 0] for number, count in enumerate(kept[rank].tolist())])
        to, come = kept[rank].view(-1, own).sum(1).tolist(), kept[:, rank * own :][:, :own]
        there = torch.empty(int(come.sum()), FEATURES)
        there = differentiable.all_to_all_single(there, tokens[sent], come.sum(1).tolist(), to)
        parts = list(there.split(come.flatten().tolist()))
        for number in range(own):
            inner = F.gelu(self.experts["fc1"](torch.cat(parts[number::own]), number))
            parts[number::own] = self.experts["fc2"](inner, number).split(come[:, number].tolist())
        back = torch.empty(len(sent), FEATURES)
        back = differentiable.all_to_all_single(back, torch.cat(parts), to, come.sum(1).tolist())
        return torch.zeros_like(tokens).index_add(0, sent, back * probability[sent].unsqueeze(1)).view_as(x)


class Linears(nn.Module):
    """A linear layer of each of this rank's experts."""

    def __init__(self, ins, outs):
        super().__init__()
        own = EXPERTS // dist.get_world_size()
        self.weight, self.bias = nn.Parameter(torch.empty(own, outs, ins)), nn.Parameter(torch.empty(own, outs))

    def forward(self, x, number):
        return F.linear(x, self.weight[number], self.bias[number])
# ANCHOR_END: experts


def draw(blocks, experts, seed):
    """The whole model's initial weights, as the Rust program draws them; biases are zeros."""
    torch.manual_seed(seed)
    shapes = {"embedding": (VOCABULARY, FEATURES), "positions": (CONTEXT, FEATURES), "head": (VOCABULARY, FEATURES)}
    layers = {"qkv": (3 * FEATURES, FEATURES), "out": (FEATURES, FEATURES)}
    if experts:
        layers["router"] = (EXPERTS, FEATURES)
        layers |= {"experts.fc1": (EXPERTS, 4 * FEATURES, FEATURES), "experts.fc2": (EXPERTS, FEATURES, 4 * FEATURES)}
    else:
        layers |= {"fc1": (4 * FEATURES, FEATURES), "fc2": (FEATURES, 4 * FEATURES)}
    for block in range(blocks):
        shapes |= {f"blocks.{block}.{name}": shape for name, shape in layers.items()}
    return {name: torch.randn(shape, dtype=torch.float64) * 0.1 for name, shape in shapes.items()}


@torch.no_grad()
def start(model, weights):
    for name, parameter in model.named_parameters():
        if name.endswith(".bias"):
            parameter.zero_()
        else:
            weight = weights[name.removesuffix(".weight")]
            parameter.copy_(weight.chunk(dist.get_world_size())[dist.get_rank()] if ".experts." in name else weight)
    return model


def cross_entropy(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Training:
    """A model, or this rank's part of it; `step` returns the mean loss over the whole batch."""

    def __init__(self, args, weights):
        rank, world = dist.get_rank(), dist.get_world_size()
        stage = range(args.blocks * rank // world, args.blocks * (rank + 1) // world)
        which = stage if args.scheme == "pipeline" else range(args.blocks)
        block = {"context": ContextBlock, "expert": ExpertBlock}.get(args.scheme, Block)
        self.model = start(Transformer(args.blocks, which, block), weights)
        mesh = init_device_mesh("cpu", (world,))
        optimizer = functools.partial(torch.optim.Adam, lr=args.lr)
        self.step = self.data_parallel
        # ANCHOR: schemes
        match args.scheme:
            case "ddp":
                self.model = DistributedDataParallel(self.model)
            case "zero":
                self.model = DistributedDataParallel(self.model)
                optimizer = functools.partial(ZeroRedundancyOptimizer, optimizer_class=torch.optim.Adam, lr=args.lr)
            case "sharded":
                for unit in [*self.model.blocks.values(), self.model]:
                    fully_shard(unit, mesh=mesh)
            case "tensor":
                layers = {"qkv": ColwiseParallel(), "out": RowwiseParallel(), "fc1": ColwiseParallel(), "fc2": RowwiseParallel()}
                for block in self.model.blocks.values():
                    parallelize_module(block, mesh, layers)
                embedding = RowwiseParallel(input_layouts=Replicate())
                head = ColwiseParallel(output_layouts=Replicate())
                parallelize_module(self.model, mesh, {"embedding": embedding, "head": head})
                self.step = self.in_parts
            case "pipeline":
                stage = PipelineStage(self.model, rank, world, torch.device("cpu"))
                schedule = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}[args.schedule]
                self.schedule = schedule(stage, args.micro_batches, loss_fn=cross_entropy)
                self.step = self.in_stages
            case "context":
                self.model.mine = positions(rank, world)
                self.step = self.averaged
            case "expert":
                self.step = self.averaged
        # ANCHOR_END: schemes
        self.optimizer = optimizer(self.model.parameters())

    def data_parallel(self, inputs, targets):
        rank, world = dist.get_rank(), dist.get_world_size()
        loss = cross_entropy(self.model(inputs.chunk(world)[rank]), targets.chunk(world)[rank])
        loss.backward()
        return added_up(loss.detach() / world)

    def averaged(self, inputs, targets):
        """Each rank has its positions, or its share of the batch; an expert gets the gradients of all ranks' losses."""
        rank, world, mine = dist.get_rank(), dist.get_world_size(), self.model.mine
        if isinstance(mine, slice):
            inputs, targets = inputs.chunk(world)[rank], targets.chunk(world)[rank]
        loss = cross_entropy(self.model(inputs[:, mine]), targets[:, mine])
        loss = loss + BALANCE * sum(getattr(block, "balance", 0.0) for block in self.model.blocks.values())
        loss.backward()
        for name, parameter in self.model.named_parameters():
            if ".experts." not in name:
                dist.all_reduce(parameter.grad)
            parameter.grad /= world
        return added_up(loss.detach() / world)

    def in_parts(self, inputs, targets):
        loss = cross_entropy(self.model(inputs), targets)
        loss.backward()
        return loss.item()

    def in_stages(self, inputs, targets):
        losses = []
        if self.model.head is not None:
            self.schedule.step(*([inputs] if self.model.embedding is not None else []), target=targets, losses=losses)
        elif self.model.embedding is not None:
            self.schedule.step(inputs)
        else:
            self.schedule.step()
        return added_up(torch.stack(losses).mean() if losses else torch.tensor(0.0))


def added_up(number):
    total = number.detach().double()
    dist.all_reduce(total)
    return total.item()


def held(training):
    """The bytes of this rank's parameters, gradients and optimizer's states."""
    local = lambda tensor: tensor.to_local() if isinstance(tensor, DTensor) else tensor
    size = lambda tensors: sum(local(tensor).numel() * tensor.element_size() for tensor in tensors)
    parameters = list(training.model.parameters())
    optimizer = getattr(training.optimizer, "optim", training.optimizer)  # that of ZeroRedundancyOptimizer's share
    states = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    return size(parameters), size([param.grad for param in parameters if param.grad is not None]), size(states)


class KeyedRng:
    """SplitMix64, as `lockstep::data::rng` has it."""

    def __init__(self, *key):
        self.state = self.mix(0x9E3779B97F4A7C15 ^ len(key))
        for part in key:
            self.state = (self.mix(self.state ^ part) + 0x9E3779B97F4A7C15) % 2**64

    def below(self, n):
        self.state = (self.state + 0x9E3779B97F4A7C15) % 2**64
        return self.mix(self.state) * n >> 64

    @staticmethod
    def mix(z):
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        return z ^ z >> 31


def sentences(seed):
    """The text, as numbers of characters."""
    subjects = ["the rank", "a worker", "the launcher", "one thread", "the store", "a bucket"]
    verbs = ["sends", "waits for", "adds up", "copies", "divides", "forgets"]
    objects = ["the gradients", "a message", "its part", "the weights", "all sums", "nothing"]
    random = KeyedRng(seed, int.from_bytes(b"sentence", "big"))
    word = lambda words: words[random.below(6)]
    text = "".join(f"{word(subjects)} {word(verbs)} {word(objects)}.\n" for _ in range(400))
    return torch.tensor([0 if character == "\n" else ord(character) - 31 for character in text])


def batch(characters, seed, step, size):
    random = KeyedRng(seed, int.from_bytes(b"sequence", "big"), step)
    begins = [random.below(len(characters) - CONTEXT - 1) for _ in range(size)]
    return [torch.stack([characters[begin + shift :][:CONTEXT] for begin in begins]) for shift in (0, 1)]


def train(args):
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64 if args.double else torch.float32)
    dist.init_process_group("gloo")
    characters = sentences(args.seed)
    training = Training(args, draw(args.blocks, args.scheme == "expert", args.seed))
    for step in range(args.steps):
        training.optimizer.zero_grad()
        loss = training.step(*batch(characters, args.seed, step, args.batch_size))
        training.optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss:.12f}", flush=True)
    parameters, gradients, states = held(training)
    rank = dist.get_rank()
    print(f"[rank {rank}] parameters {parameters} bytes, gradients {gradients}, optimizer's states {states}", flush=True)
    dist.barrier()  # PyTorch 2.11 may hang if a thread of Gloo lets go of a tensor while the group ends,
    time.sleep(0.1)  # for which it needs Python's lock: the last rank to arrive at the barrier leaves it no time
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--scheme", choices=["ddp", "zero", "sharded", "tensor", "pipeline", "context", "expert"], default="ddp")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=12, help="sequences in a step, of all ranks together")
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--schedule", choices=["1f1b", "gpipe"], default="1f1b")
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--double", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    train(parser.parse_args())
