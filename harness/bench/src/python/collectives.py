"""The same as crates/bench-ranks/src/collectives.rs in Python: the same collectives on the same tensors, checked and timed in the same way."""

import os
import statistics
import sys
import time

import torch
import torch.distributed as dist

WARM_UP, TIMED = 1, 5
ON_GPU = "cuda" in sys.argv
DEVICE = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if ON_GPU else torch.device("cpu")


def now():
    """When the device has done all that was queued."""
    if ON_GPU:
        torch.cuda.synchronize(DEVICE)
    return time.perf_counter()


def pattern(length):
    return torch.arange(length, dtype=torch.float32, device=DEVICE).remainder(7) + 1


def tensors(operation, length, rank, world):
    """Inputs, outputs, and what the outputs must be."""
    part, root, total = length // world, rank == 0, world * (world + 1) // 2

    def mine(count):
        return pattern(count) * (rank + 1)

    def of_each():
        return [pattern(part) * (r + 1) for r in range(world)]

    ours = pattern(length)[rank * part : (rank + 1) * part]
    if operation in ("all_reduce", "all_reduce_bucket", "reduce"):
        return [], [mine(length)], [] if operation == "reduce" and not root else [pattern(length) * total]
    if operation == "broadcast":
        return [], [mine(length)], [pattern(length)]
    if operation == "all_gather":
        return [mine(part)], [torch.zeros(length, device=DEVICE)], [torch.cat(of_each())]
    if operation == "gather":
        return [mine(part)], [torch.zeros(part, device=DEVICE) for _ in range(world)] if root else [], of_each() if root else []
    if operation == "scatter":
        return of_each() if root else [], [torch.zeros(part, device=DEVICE)], [mine(part)]
    if operation == "reduce_scatter":
        return [mine(length)], [torch.zeros(part, device=DEVICE)], [ours * total]
    if operation == "all_to_all":
        return [mine(length)], [torch.zeros(length, device=DEVICE)], [torch.cat([ours * (r + 1) for r in range(world)])]
    if operation == "send_recv":
        return [mine(length)], [torch.zeros(length, device=DEVICE)], [pattern(length) * ((rank - 1) % world + 1)]
    return [], [], []


def call(operation, inputs, outputs, rank):
    if operation in ("all_reduce", "all_reduce_bucket"):  # a bucket of Python's DDP is a tensor like any other
        dist.all_reduce(outputs[0])
    elif operation == "broadcast":
        dist.broadcast(outputs[0], 0)
    elif operation == "reduce":
        dist.reduce(outputs[0], 0)
    elif operation == "all_gather":
        dist.all_gather_into_tensor(outputs[0], inputs[0])
    elif operation == "gather":
        dist.gather(inputs[0], outputs if rank == 0 else None, 0)
    elif operation == "scatter":
        dist.scatter(outputs[0], inputs if rank == 0 else None, 0)
    elif operation == "reduce_scatter":
        dist.reduce_scatter_tensor(outputs[0], inputs[0])
    elif operation == "all_to_all":
        dist.all_to_all_single(outputs[0], inputs[0])
    elif operation == "send_recv":
        world = dist.get_world_size()
        both = [dist.P2POp(dist.irecv, outputs[0], (rank - 1) % world), dist.P2POp(dist.isend, inputs[0], (rank + 1) % world)]
        for work in dist.batch_isend_irecv(both):
            work.wait()
    else:
        dist.barrier()


def measure(operation, size, rank, world):
    """Seconds of one operation, and the number of wrong elements on all ranks."""
    inputs, outputs, expected = tensors(operation, size // 4, rank, world)
    call(operation, inputs, outputs, rank)
    wrong = torch.tensor(sum(int((found != right).sum()) for found, right in zip(outputs, expected)))
    dist.all_reduce(wrong)
    for tensor in inputs + outputs:
        tensor.zero_()
    batch = min(max(256 * 1024 // max(size, 1), 1), 10)
    times = []
    for _ in range(WARM_UP + TIMED):
        dist.barrier()
        begun = now()
        for _ in range(batch):
            call(operation, inputs, outputs, rank)
        times.append((now() - begun) / batch)
    slowest = torch.tensor(times[WARM_UP:], dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return statistics.median(slowest.tolist()), int(wrong)


def collective(order, rank, world):
    found = [measure(order["operation"], size, rank, world) for size in order["bytes"]]
    return {"seconds": [seconds for seconds, _ in found], "wrong": [wrong for _, wrong in found]}
