"""Lab 05: how the grader's inputs reach each task's function, and a ring of ranks."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from .rank import Task, a, nothing, number, numbers, tensor
from .record import RECORDER


class Ring:
    """A rank in a ring. It can send to the next rank and receive from the previous one."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._sent = 0

    def exchange(self, chunk: torch.Tensor) -> torch.Tensor:
        """Sends `chunk` to the next rank and returns the one that the previous rank sends in the same step. In a ring of one rank, the rank
        sends to itself."""
        a(torch.Tensor, chunk, "a tensor", "`exchange` got")
        self._sent += chunk.numel()
        if self.size == 1:
            return chunk.clone()
        length = torch.zeros(1, dtype=torch.int64)
        self._swap(torch.tensor([chunk.numel()]), length, 0)
        arrives = torch.zeros(int(length), dtype=chunk.dtype)
        # Empty chunks are not sent. Both sides know the length.
        self._swap(chunk.detach().contiguous(), arrives, 1)
        return arrives

    def _swap(self, leaves: torch.Tensor, arrives: torch.Tensor, tag: int) -> None:
        following, previous = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        works = []
        if leaves.numel() > 0:
            works.append(dist.isend(leaves, following, tag=tag))
        if arrives.numel() > 0:
            works.append(dist.irecv(arrives, previous, tag=tag))
        for work in works:
            work.wait()


def _mean(answer: Callable[..., Any], by_rank: Any) -> float:
    return number(answer(tensor(by_rank[dist.get_rank()])))


def _called(run: Callable[[], Any]) -> tuple[Any, list[dict[str, Any]]]:
    """A result, and the calls that it took."""
    RECORDER.record_calls()
    result = run()
    calls = RECORDER.called()
    return result, [{"members": call.members, "operation": call.operation, "waited": call.waited} for call in calls]


def _transpose(answer: Callable[..., Any], rows: Any) -> tuple[dict[str, Any], list[dict[str, Any]], int]:
    each = len(rows) // dist.get_world_size()
    begin = dist.get_rank() * each
    block = torch.tensor(rows[begin : begin + each], dtype=torch.float64)
    before = RECORDER.bytes()
    transposed, calls = _called(lambda: answer(block))
    matrix = {"numbers": numbers(transposed), "size": list(transposed.shape)}
    return matrix, calls, RECORDER.bytes() - before


class Name(str):
    """A metric's name. Its hash depends on the rank, as that of a text depends on the process: copies of one process share the latter, and
    a set would have one order on all ranks."""

    def __hash__(self) -> int:
        return hash((dist.get_rank(), str(self)))


def _same_order(answer: Callable[..., Any], by_rank: Any) -> dict[str, float]:
    rank = dist.get_rank()
    # Rank 1 has measured its metrics in the opposite order: a dict keeps the order in which it was filled.
    own = {Name(name): value for name, value in sorted(by_rank[rank].items(), reverse=rank == 1)}
    means = a(dict, answer(own), "a dict")
    return {name: number(value, "the answer returned a dict with") for name, value in means.items()}


def _leaders(answer: Callable[..., Any], given: Any) -> tuple[list[float], list[dict[str, Any]]]:
    nodes, by_rank = given
    own = tensor(by_rank[dist.get_rank()])
    before = own.clone()
    returned, calls = _called(lambda: answer(nodes, own))
    if torch.equal(own, before):
        nothing(returned)
    return numbers(own), calls


def _ring_all_reduce(answer: Callable[..., Any], by_rank: Any) -> dict[str, Any]:
    ring, own = Ring(), tensor(by_rank[dist.get_rank()])
    before = own.clone()
    returned = answer(ring, own)
    if torch.equal(own, before):
        nothing(returned)
    return {"numbers": numbers(own), "sent": ring._sent}


TASKS = {
    "mean": Task(_mean, in_group=True),
    "transpose": Task(_transpose, in_group=True),
    "same_order": Task(_same_order, in_group=True),
    "leaders": Task(_leaders, in_group=True),
    "ring_all_reduce": Task(_ring_all_reduce, in_group=True),
}
