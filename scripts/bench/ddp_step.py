"""Times DDP steps in Python and prints them as lines of JSON: the twin of crates/lockstep/examples/ddp_step.rs.

The same network, samples, initial weights (to the bit), SGD and number of threads. Run by against_python.py; needs a Python
with PyTorch 2.11.
"""

import argparse
import json
import os
import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LAYERS, BATCH, LEARNING_RATE = (784, 1024, 1024, 10), 64, 0.01


def formula(shape, salt, scale):
    """Numbers in [-1, 1] in steps of 1/1000, times `scale`; the same bits in Rust."""
    numbers = torch.arange(torch.Size(shape).numel())
    thousandths = (numbers * 7919 + salt * 104729).remainder(2001) - 1000
    return (thousandths.double() / 1000 * scale).float().reshape(shape)


def make_network():
    layers = []
    for layer, (inputs, outputs) in enumerate(zip(LAYERS, LAYERS[1:])):
        linear = nn.Linear(inputs, outputs)
        with torch.no_grad():
            linear.weight.copy_(formula((outputs, inputs), 2 * layer + 1, inputs**-0.5))
            linear.bias.copy_(formula((outputs,), 2 * layer + 2, inputs**-0.5))
        layers += [nn.ReLU(), linear] if layers else [linear]
    return nn.Sequential(*layers)


def make_batch(rank):
    numbers = torch.arange(BATCH) + rank
    targets = (numbers * 7 + numbers.div(3, rounding_mode="floor")).remainder(LAYERS[-1])
    return formula((BATCH, LAYERS[0]), 9 + rank, 1.0), targets


def worker(rank, store_port, args):
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", store_port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=args.ranks)
    ddp = DistributedDataParallel(make_network(), gradient_as_bucket_view=args.bucket_view)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=LEARNING_RATE, fused=True if args.fused else None)
    inputs, targets = make_batch(rank)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(ddp(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss

    measure(step, args.warmup)
    orders = Orders(args) if rank == 0 else None
    while (steps := agree(orders.next() if orders else 0)) > 0:
        line = measure(step, steps)
        if orders:
            orders.answer(line)
    dist.barrier()
    dist.destroy_process_group()


def measure(step, steps):
    """The seconds of each step and the loss of the last one, which is read after the clock has stopped."""
    seconds, loss = [], None
    for _ in range(steps):
        begun = time.perf_counter()
        loss = step()
        seconds.append(time.perf_counter() - begun)
    return json.dumps({"seconds": seconds, "loss": loss.item()})


def agree(steps):
    """Sends rank 0's number to all ranks."""
    number = torch.tensor(steps)
    dist.broadcast(number, 0)
    return number.item()


class Orders:
    """Where the number of steps comes from and the times go: the driver, or once the command line."""

    def __init__(self, args):
        self.steps = args.steps
        self.driver = args.driver and socket.create_connection(("127.0.0.1", args.driver)).makefile("rw")

    def next(self):
        """How many steps to take next; 0 means stop, and so does a driver that has exited."""
        if self.driver:
            return int(self.driver.readline() or 0)
        steps, self.steps = self.steps, 0
        return steps

    def answer(self, line):
        print(line, file=self.driver, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2, help="processes to start, one thread each")
    parser.add_argument("--warmup", type=int, default=30, help="steps before the clock starts")
    parser.add_argument("--steps", type=int, default=200, help="steps to time, without a driver")
    parser.add_argument("--driver", type=int, help="loopback port of a driver that asks for steps")
    parser.add_argument("--fused", action="store_true", help="SGD's fused kernel instead of Python's default")
    parser.add_argument("--bucket-view", action="store_true", help="make gradients views into their buckets")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    mp.spawn(worker, (store.port, args), nprocs=args.ranks)


if __name__ == "__main__":
    main()
