

"""The same as crates/bench-ranks/src/parallel.rs in Python: the same weights to the bit, the same rows, and the same steps."""

import functools
import gc
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

PARALLEL_WARM_UP, INPUTS, TARGETS, RATE = 2, 1000, 2000, 1e-4
EXPERTS, CAPACITY = 2, 2.0  # experts of a rank


class MlpBlock(nn.Module):
    def __init__(self, block, features):
        super().__init__()
        self.first = nn.Linear(features, 4 * features, bias=False)
        self.second = nn.Linear(4 * features, features, bias=False)
        with torch.no_grad():
            self.first.weight.copy_(formula((4 * features, features), 2 * block + 1, features**-0.5))
            self.second.weight.copy_(formula((features, 4 * features), 2 * block + 2, (4 * features) ** -0.5))

    def forward(self, x):
        return x + self.second(nn.functional.gelu(self.first(x)))


def positions(rank, world, length):
    chunks = torch.arange(length).chunk(2 * world)
    return torch.cat([chunks[rank], chunks[2 * world - 1 - rank]])


class AttentionBlock(nn.Module):
    """PyTorch's context_parallel has no kernel for CPUs (2.11): the keys and values of all ranks are gathered."""

    def __init__(self, block, features):
        super().__init__()
        self.qkv = nn.Parameter(formula((3 * features, features), 2 * block + 1, features**-0.5))
        self.out = nn.Parameter(formula((features, features), 2 * block + 2, features**-0.5))

    def forward(self, x):
        from torch.distributed._functional_collectives import all_gather_tensor_autograd

        rank, world = dist.get_rank(), dist.get_world_size()
        normalized = nn.functional.layer_norm(x, x.shape[1:])
        queries, keys_and_values = nn.functional.linear(normalized, self.qkv).split([x.shape[1], 2 * x.shape[1]], dim=1)
        keys, values = all_gather_tensor_autograd(keys_and_values.contiguous(), 0, dist.group.WORLD).chunk(2, dim=1)
        mine, all_positions = positions(rank, world, len(keys)), [positions(of, world, len(keys)) for of in range(world)]
        earlier = torch.cat(all_positions) <= mine.unsqueeze(1)
        heads = [part[None, None] for part in (queries, keys, values)]
        attended = nn.functional.scaled_dot_product_attention(*heads, attn_mask=earlier)[0, 0]
        return x + nn.functional.linear(attended, self.out)


class ExpertBlock(nn.Module):
    def __init__(self, block, features):
        super().__init__()
        rank, experts = dist.get_rank(), EXPERTS * dist.get_world_size()
        part = lambda whole: nn.Parameter(whole[rank * EXPERTS :][:EXPERTS].clone())
        self.router = nn.Parameter(formula((experts, features), 3 * block + 3, features**-0.5))
        self.experts = nn.ParameterDict(
            {
                "first": part(formula((experts, 4 * features, features), 3 * block + 1, features**-0.5)),
                "second": part(formula((experts, features, 4 * features), 3 * block + 2, (4 * features) ** -0.5)),
                "bias_of_first": torch.zeros(EXPERTS, 4 * features),
                "bias_of_second": torch.zeros(EXPERTS, features),
            }
        )

    def forward(self, x):
        from torch.distributed.nn.functional import all_to_all_single

        rank, experts = dist.get_rank(), len(self.router)
        probability, expert = nn.functional.linear(x, self.router).softmax(-1).max(-1)
        chosen = torch.empty(dist.get_world_size(), experts, dtype=torch.int64)
        dist.all_gather_into_tensor(chosen, torch.bincount(expert, minlength=experts).unsqueeze(0))
        limit = -(-CAPACITY * chosen.sum().item() // experts)
        kept = torch.minimum((limit - chosen.cumsum(0) + chosen).clamp(min=0).long(), chosen)
        sent = torch.cat([(expert == number).nonzero()[:count, 0] for number, count in enumerate(kept[rank].tolist())])
        to, come = kept[rank].view(-1, EXPERTS).sum(1).tolist(), kept[:, rank * EXPERTS :][:, :EXPERTS]
        there = torch.empty(int(come.sum()), x.shape[1])
        there = all_to_all_single(there, x[sent], come.sum(1).tolist(), to)
        parts = list(there.split(come.flatten().tolist()))
        first, second = ((self.experts[name], self.experts[f"bias_of_{name}"]) for name in ("first", "second"))
        for number in range(EXPERTS):
            inner = nn.functional.linear(torch.cat(parts[number::EXPERTS]), first[0][number], first[1][number])
            outputs = nn.functional.linear(nn.functional.gelu(inner), second[0][number], second[1][number])
            parts[number::EXPERTS] = outputs.split(come[:, number].tolist())
        back = all_to_all_single(torch.empty(len(sent), x.shape[1]), torch.cat(parts), to, come.sum(1).tolist())
        return x + torch.zeros_like(x).index_add(0, sent, back * probability[sent].unsqueeze(1))


class DividedTrainer:
    def __init__(self, order, rank, world):
        from torch.distributed.device_mesh import init_device_mesh

        block = {"context": AttentionBlock, "expert": ExpertBlock}.get(order["scheme"], MlpBlock)
        self.model = nn.Sequential(*(block(number, order["features"]) for number in range(order["blocks"])))
        mesh = init_device_mesh("cpu", (world,))
        optimizer = functools.partial(torch.optim.AdamW, lr=RATE, fused=True if "--fused" in sys.argv else None)
        if order["scheme"] == "zero":
            from torch.distributed.optim import ZeroRedundancyOptimizer

            self.model = DistributedDataParallel(self.model)
            optimizer = functools.partial(ZeroRedundancyOptimizer, optimizer_class=optimizer.func, **optimizer.keywords)
        elif order["scheme"] == "sharded":
            from torch.distributed.fsdp import fully_shard

            for unit in [*self.model, self.model]:
                fully_shard(unit, mesh=mesh)
        elif order["scheme"] == "tensor":
            from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

            for block in self.model:
                parallelize_module(block, mesh, {"first": ColwiseParallel(), "second": RowwiseParallel()})
        self.optimizer = optimizer(self.model.parameters())
        self.averages = order["scheme"] in ("context", "expert")
        # Ranks with parts of a layer have the same rows, those with parts of a sequence rows of the same.
        share = 0 if order["scheme"] in ("tensor", "context") else rank
        rows, mine = (order["rows"], order["features"]), slice(None)
        if order["scheme"] == "context":
            rows, mine = (order["rows"] * world, order["features"]), positions(rank, world, order["rows"] * world)
        self.inputs, self.targets = (formula(rows, salt + share, 1.0)[mine] for salt in (INPUTS, TARGETS))

    def step(self):
        """The seconds of a step from a common start, and the rank's loss."""
        dist.barrier()
        begun = time.perf_counter()
        self.optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(self.model(self.inputs), self.targets)
        loss.backward()
        if self.averages:
            self.average()
        self.optimizer.step()
        return time.perf_counter() - begun, loss.item()

    def average(self):
        """An expert already has the gradients of all ranks' losses."""
        named = list(self.model.named_parameters())
        shared = [parameter.grad for name, parameter in named if ".experts." not in name]
        flat = torch._utils._flatten_dense_tensors(shared)
        dist.all_reduce(flat)
        for gradient, summed in zip(shared, torch._utils._unflatten_dense_tensors(flat, shared)):
            gradient.copy_(summed)
        torch._foreach_div_([parameter.grad for _, parameter in named], dist.get_world_size())

    def kept(self):
        """The bytes of the memory that parameters, gradients, the optimizer's states and DDP's buckets lie in between two steps."""
        parameters = list(self.model.parameters())
        optimizer = getattr(self.optimizer, "optim", self.optimizer)
        states = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
        tensors = parameters + [parameter.grad for parameter in parameters if parameter.grad is not None] + states
        local = [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in local}
        buckets = 0
        if isinstance(self.model, DistributedDataParallel):
            sizes = self.model._get_ddp_logging_data()["rebuilt_bucket_sizes"]
            buckets = sum(int(size) for size in sizes.split(", "))
        return sum(storages.values()) + buckets


def proc_field(path, name):
    line = next(line for line in Path(path).read_text().splitlines() if line.startswith(name))
    return int(line.split()[1])


def parallel(order, rank, world):
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    mine = DividedTrainer(order, rank, world)
    losses = [mine.step()[1] for _ in range(PARALLEL_WARM_UP)]
    before = proc_field("/proc/self/io", "wchar:")
    steps = [mine.step() for _ in range(order["steps"])]
    sent = (proc_field("/proc/self/io", "wchar:") - before) / order["steps"]
    seconds, losses = [seconds for seconds, _ in steps], losses + [loss for _, loss in steps]
    peak = 1024 * proc_field("/proc/self/status", "VmHWM:")
    means = torch.tensor(seconds + losses + [sent, mine.kept(), peak], dtype=torch.float64)
    dist.all_reduce(means)
    means = (means / world).tolist()
    names = dict(zip(["sent", "kept", "peak"], means[-3:]))
    return {"step": statistics.median(means[: len(seconds)]), "losses": means[len(seconds) : -3]} | names
