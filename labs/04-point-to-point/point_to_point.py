"""Lab 04 in Python: torchrun --standalone --nproc-per-node=2 point_to_point.py, or the same with lockstep run.

Prints what the parts send-recv, isend-irecv and ring of the Rust program print, and how its deadlock is fixed.
"""

import torch
import torch.distributed as dist


# ANCHOR: send_recv
def send_recv(rank):
    tensor = torch.zeros(1)
    if rank == 0:
        tensor += 1
        dist.send(tensor, dst=1)
    elif rank == 1:
        dist.recv(tensor, src=0)
    say(f"send-recv: has data {tensor.item():g}")
# ANCHOR_END: send_recv


# ANCHOR: isend_irecv
def isend_irecv(rank):
    tensor = torch.zeros(1)
    work = None
    if rank == 0:
        tensor += 1
        work = dist.isend(tensor, dst=1)
    elif rank == 1:
        work = dist.irecv(tensor, src=0)
    # Nothing keeps this line from using the tensor already. In Rust, `work` owns it until `wait`.
    if work is not None:
        work.wait()
    say(f"isend-irecv: has data {tensor.item():g}")
# ANCHOR_END: isend_irecv


# ANCHOR: ring
def ring(rank, size):
    token = torch.zeros(2)  # the sum of the ranks that it has visited, and their count
    if rank != 0:
        dist.recv(token, src=rank - 1)
    token += torch.tensor([rank, 1])
    after = (rank + 1) % size
    say(f"ring: {token[0]:g} after {token[1]:g} visits, on to rank {after}")
    dist.send(token, dst=after)
    if rank == 0:
        dist.recv(token, src=size - 1)
        say(f"ring: the token is back with {token[0]:g} after {token[1]:g} visits")
# ANCHOR_END: ring


# ANCHOR: start
def start_both(rank, size):
    """Each rank starts everything that others wait for before it waits. Two blocking calls here would be a deadlock."""
    held = torch.zeros(1)
    sending = dist.isend(torch.tensor([float(rank)]), dst=(rank + 1) % size)
    receiving = dist.irecv(held, src=(rank - 1) % size)
    sending.wait()
    receiving.wait()
    say(f"deadlock: start to send, then receive: got {held.item():g}")
# ANCHOR_END: start


def say(words):
    print(f"[rank {dist.get_rank()}] {words}", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    send_recv(rank)
    isend_irecv(rank)
    ring(rank, size)
    start_both(rank, size)
    dist.destroy_process_group()
