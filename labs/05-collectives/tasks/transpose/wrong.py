"""Answers to `transpose`: wrong ones, and unusual right ones."""

import torch
import torch.distributed as dist

from lockstep_exercise import edit


# Transposes the rank's own block.
@edit("    dist.all_to_all_single(received, parts)\n", "    received = parts\n")
@edit("torch.cat(received.chunk(dist.get_world_size()), dim=1)", "received")
def own_block(): ...


# Leaves the received parts one below the other.
@edit("torch.cat(received.chunk(dist.get_world_size()), dim=1)", "received.view(-1, block.shape[0] * dist.get_world_size())")
def below(): ...


# Reshapes the block, which keeps the order of its numbers.
@edit("block.t().contiguous()", "block.reshape(block.shape[1], block.shape[0])")
def reshaped(): ...


# Sends a view whose rows do not lie one after the other.
@edit("block.t().contiguous()", "block.t()")
def strided(): ...


# Sends rows instead of columns.
@edit("block.t().contiguous()", "block")
def rows(): ...


# Gathers all blocks on every rank and keeps a part.
def gathers(block: torch.Tensor) -> torch.Tensor:
    rank, size = dist.get_rank(), dist.get_world_size()
    blocks = [torch.empty_like(block) for _ in range(size)]
    dist.all_gather(blocks, block)
    return torch.cat(blocks).t().chunk(size)[rank].contiguous()


# Receives in single precision.
@edit("torch.empty_like(parts)", "torch.empty(parts.shape)")
def single(): ...


# Sends each row by itself.
def row_by_row(block: torch.Tensor) -> torch.Tensor:
    size = dist.get_world_size()
    received = []
    for row in block:
        arrives = torch.empty_like(row)
        dist.all_to_all_single(arrives, row.contiguous())
        received.append(arrives.view(size, -1))
    return torch.cat(list(torch.stack(received, 2)), 1)


# Right: with lists of tensors and messages, since Gloo has no all_to_all of lists everywhere.
def messages(block: torch.Tensor) -> torch.Tensor:
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = [part.t().contiguous() for part in block.chunk(size, dim=1)]
    arrive = [torch.empty_like(part) for part in parts]
    arrive[rank] = parts[rank]
    others = [other for other in range(size) if other != rank]
    works = [dist.isend(parts[other], other) for other in others]
    works += [dist.irecv(arrive[other], other) for other in others]
    for work in works:
        work.wait()
    return torch.cat(arrive, dim=1)


# Right: sends columns without a transposition before, which comes at the end.
def at_the_end(block: torch.Tensor) -> torch.Tensor:
    size = dist.get_world_size()
    parts = torch.stack(block.chunk(size, dim=1)).contiguous()
    received = torch.empty_like(parts)
    dist.all_to_all_single(received, parts)
    return received.flatten(0, 1).t().contiguous()
