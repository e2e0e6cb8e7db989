"""Answers to `exchange`: wrong ones, and unusual right ones."""

import torch
import torch.distributed as dist

from lockstep_exercise import edit

WAIT = "    for work in works:\n        work.wait()\n"


# Reads the buffers before `wait`: in Rust the request owns them until then.
@edit("    return torch.cat([before, piece, after])", "    return row")
@edit(WAIT, "    row = torch.cat([before, piece, after])\n" + WAIT)
def reads_early(): ...


# Waits for nothing.
@edit(WAIT, "")
def without_a_wait(): ...


# Waits for the receives only.
@edit("in works:", "in works[2:]:")
def waits_for_receives(): ...


# Waits for the last message only.
@edit("in works:\n        work.wait()", "in works:\n        pass\n    work.wait()")
def waits_for_the_last(): ...


# Right: one tag in both directions, since messages with one tag match in the order in which they were started.
@edit("TO_PREVIOUS),\n        dist.irecv(before", "TO_NEXT),\n        dist.irecv(before")
@edit("tag=TO_PREVIOUS),\n    ]", "tag=TO_NEXT),\n    ]")
def one_tag(): ...


# The receiver expects the other tag.
@edit("dist.irecv(before, previous, tag=TO_NEXT)", "dist.irecv(before, previous, tag=TO_PREVIOUS)")
@edit("dist.irecv(after, following, tag=TO_PREVIOUS)", "dist.irecv(after, following, tag=TO_NEXT)")
def other_tags(): ...


# Sends the wrong ends.
@edit("dist.isend(last, following", "dist.isend(first, following")
@edit("dist.isend(first, previous", "dist.isend(last, previous")
def far_ends(): ...


# Puts the received numbers at the wrong ends.
@edit("[before, piece, after]", "[after, piece, before]")
def swapped(): ...


# Blocks in each send.
def blocks(piece: torch.Tensor) -> torch.Tensor:
    me, size = dist.get_rank(), dist.get_world_size()
    following, previous = (me + 1) % size, (me - 1) % size
    before, after = torch.empty_like(piece[:1]), torch.empty_like(piece[:1])
    dist.send(piece[-1:], following, tag=0)
    dist.recv(before, previous, tag=0)
    dist.send(piece[:1], previous, tag=1)
    dist.recv(after, following, tag=1)
    return torch.cat([before, piece, after])


# Finishes one direction before the other begins.
def in_turn(piece: torch.Tensor) -> torch.Tensor:
    me, size = dist.get_rank(), dist.get_world_size()
    following, previous = (me + 1) % size, (me - 1) % size
    before, after = torch.empty_like(piece[:1]), torch.empty_like(piece[:1])
    for leaves, to, arrives, source, tag in [(piece[-1:], following, before, previous, 0), (piece[:1], previous, after, following, 1)]:
        works = [dist.isend(leaves, to, tag=tag), dist.irecv(arrives, source, tag=tag)]
        for work in works:
            work.wait()
    return torch.cat([before, piece, after])


# Gathers the borders of all ranks.
def gathers(piece: torch.Tensor) -> torch.Tensor:
    me, size = dist.get_rank(), dist.get_world_size()
    borders = [torch.empty(2, dtype=piece.dtype) for _ in range(size)]
    dist.all_gather(borders, piece[[0, -1]])
    return torch.cat([borders[(me - 1) % size][1:], piece, borders[(me + 1) % size][:1]])


# Right: as a batch.
def batch(piece: torch.Tensor) -> torch.Tensor:
    me, size = dist.get_rank(), dist.get_world_size()
    following, previous = (me + 1) % size, (me - 1) % size
    before, after = torch.empty_like(piece[:1]), torch.empty_like(piece[:1])
    messages = [
        dist.P2POp(dist.isend, piece[-1:], following, tag=0),
        dist.P2POp(dist.isend, piece[:1], previous, tag=1),
        dist.P2POp(dist.irecv, before, previous, tag=0),
        dist.P2POp(dist.irecv, after, following, tag=1),
    ]
    for work in dist.batch_isend_irecv(messages):
        work.wait()
    return torch.cat([before, piece, after])
