

"""The same as crates/bench-ranks in Python. The files with its functions come before it.

Its last argument is the bench's socket: a path, or tcp:HOST:PORT:WORD, where WORD is to be sent first. Before it, `--fused` asks for an
optimizer's fused kernel instead of Python's default, `--sync` for files that are safe on disk, and `--device cuda` for GPUs.
"""

import datetime
import json
import os
import socket
import sys

import torch
import torch.distributed as dist

# The functions are in the files before this one.
KINDS = {"collective": collective, "parallel": parallel, "pictures": pictures, "snapshot": snapshot, "step": step}  # noqa: F821


def connected(address):
    if address.startswith("tcp:"):
        _, host, port, _ = address.split(":")
        return socket.create_connection((host, int(port)))
    bench = socket.socket(socket.AF_UNIX)
    bench.connect(address)
    return bench


def main():
    torch.set_num_threads(1)
    if ON_GPU:  # noqa: F821
        torch.cuda.set_device(DEVICE)  # noqa: F821
    # The other ranks wait for rank 0 while the bench measures something else.
    backend = "cpu:gloo,cuda:nccl" if ON_GPU else "gloo"  # noqa: F821
    dist.init_process_group(backend, timeout=datetime.timedelta(days=1))
    rank, world = dist.get_rank(), dist.get_world_size()
    lines = connected(sys.argv[-1]).makefile("rw")
    if sys.argv[-1].startswith("tcp:"):
        print(sys.argv[-1].split(":")[3], file=lines)
    print(rank, os.environ["TORCHELASTIC_RESTART_COUNT"], os.getpid(), file=lines, flush=True)
    while True:
        line = [lines.readline() if rank == 0 else None]
        dist.broadcast_object_list(line, 0)
        if not line[0].strip():
            break
        ((kind, order),) = json.loads(line[0]).items()
        answer = KINDS[kind](order, rank, world)
        if rank == 0:
            print(json.dumps(answer), file=lines, flush=True)
    dist.destroy_process_group()
    # Without the interpreter's finalization, in which a thread of Gloo may still ask for the interpreter.
    os._exit(0)


main()
