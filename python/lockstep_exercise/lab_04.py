"""Lab 04: how the grader's inputs reach each task's function, and a peer that is late or gone."""

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .rank import Task, WrongType, a, number, numbers, sequence, tensor
from .record import PATIENCE, RECORDER, connect

# The time between two looks, in seconds, how many looks to wait for the next batch, and more looks than pass between the end of a send and
# the end of its receive. A busy machine makes each longer, so that looks measure what others can do meanwhile.
LOOK = 0.002
LOOKS = 450
ARRIVAL = 25


@dataclass(frozen=True)
class Message:
    """The message arrived."""

    tensor: torch.Tensor


@dataclass(frozen=True)
class Late:
    """The message did not arrive in time, but the peer is still connected."""


@dataclass(frozen=True)
class Gone:
    """The message will never arrive: the peer has closed its connection."""


def _calls() -> list[tuple[str, bool]]:
    return [(call.operation, call.waited) for call in RECORDER.called()]


def _ring(answer: Callable[..., Any], by_rank: Any) -> tuple[list[list[float]], list[tuple[str, bool]]]:
    RECORDER.record_calls()
    everyones = sequence(answer(tensor(by_rank[dist.get_rank()])), "a list of tensors")
    return [numbers(one, "the answer returned a list with") for one in everyones], _calls()


def _exchange(answer: Callable[..., Any], by_rank: Any) -> tuple[list[float], list[tuple[str, bool]], list[int]]:
    RECORDER.record_calls()
    row = numbers(answer(tensor(by_rank[dist.get_rank()])))
    return row, _calls(), [call.waited_before for call in RECORDER.called()]


def _prefetch(answer: Callable[..., Any], batches: Any) -> dict[str, Any]:
    store = connect(dist.get_rank(), 2)
    seen: dict[str, Any] = {"results": [], "changed": [], "overlapped": [], "arrived": [], "coming": [], "started": 0}
    if dist.get_rank() == 0:
        for count, batch in enumerate(batches):
            # When the computation on the one before has begun, so that what it reads first does not depend on who is faster.
            if count > 0:
                _is_there(store, f"prefetch/begun/{count - 1}")
            dist.send(tensor(batch), 1)
            store.set(f"prefetch/sent/{count}", "")
        return seen
    RECORDER.record_calls()

    def bits(batch: torch.Tensor) -> bytes:
        # NaN equals nothing, not even itself.
        return struct.pack(f"{batch.numel()}d", *batch.tolist())

    def compute(batch: torch.Tensor) -> float:
        at_first = bits(a(torch.Tensor, batch, "a tensor", "`compute` got"))
        following = len(seen["overlapped"]) + 1
        store.set(f"prefetch/begun/{following - 1}", "")
        receives = [call.waited for call in RECORDER.called()]
        seen["arrived"].append(sum(receives))
        seen["coming"].append(len(receives) - sum(receives))
        key = f"prefetch/sent/{following}"
        seen["overlapped"].append(False in receives and following < len(batches) and _is_there(store, key))
        for _ in range(ARRIVAL):
            time.sleep(LOOK)
        seen["changed"].append(at_first != bits(batch))
        return batch.sum().item()

    results = sequence(answer(len(batches), len(batches[0]), compute), "a list of numbers")
    seen["results"] = [number(result, "the answer returned a list with") for result in results]
    seen["started"] = len(RECORDER.called())
    return seen


def _is_there(store: dist.Store, key: str) -> bool:
    """Returns true if a rank sets the key within some looks."""
    for _ in range(LOOKS):
        if store.check([key]):
            return True
        time.sleep(LOOK)
    return False


def _deadline(answer: Callable[..., Any], given: Any) -> Any:
    does, values, patience = given
    rank, store = dist.get_rank(), connect(dist.get_rank(), 2)
    # Gloo closes a group in which a deadline has passed, so each case has its own.
    before = _open_files()
    group = dist.new_group([0, 1])
    connections = _open_files() - before
    name = f"deadline/{RECORDER.created}"
    store.set(f"{name}/connected/{rank}", "")
    store.wait([f"{name}/connected/0", f"{name}/connected/1"], PATIENCE)
    if rank == 1:
        if does == "sends":
            # If the answer does not receive it, that is rank 0's outcome.
            with contextlib.suppress(RuntimeError):
                dist.send(tensor(values), 0, group=group)
        elif does == "leaves":
            _leave(connections)
            store.set(f"{name}/left", "")
        else:
            # An answer that never gives up hangs, and so does this rank.
            store.wait([f"{name}/decided"], PATIENCE)
        return None
    if does == "leaves":
        store.wait([f"{name}/left"], PATIENCE)
    RECORDER.record_calls()
    begun, ended, late = time.monotonic(), threading.Event(), [0.0]

    def waits() -> None:
        if not ended.wait(patience / 1000):
            late[0] = max(0.0, time.monotonic() - begun - patience / 1000)

    other = threading.Thread(target=waits, daemon=True)
    other.start()
    try:
        received = answer(group, 0 if does == "itself" else 1, len(values), timedelta(milliseconds=patience))
    except Exception as error:
        if does != "itself":
            raise
        received = error
    clock = time.monotonic() - begun
    ended.set()
    other.join()
    # Less the time by which a thread that had only to wake up was late.
    own = max(0.0, clock - late[0])
    store.set(f"{name}/decided", "")
    return _outcome(received), _calls(), [int(clock * 1000), int(own * 1000)]


def _outcome(received: Any) -> Any:
    if isinstance(received, Message):
        return {"message": numbers(received.tensor, "the answer returned a Message with")}
    if isinstance(received, Exception):
        return {"error": str(received)}
    names = {Late: "late", Gone: "gone"}
    if type(received) not in names:
        raise WrongType(f"the answer returned {received!r} where Message(tensor), Late() or Gone() is asked for")
    return names[type(received)]


def _open_files() -> set[int]:
    return {int(file) for file in os.listdir("/proc/self/fd")}


def _leave(files: set[int]) -> None:
    """Closes these connections. `destroy_process_group` leaves them open as long as anything refers to the group."""
    for file in files:
        try:
            with socket.socket(fileno=os.dup(file)) as connection:
                # Gloo's thread takes the end of the socket on which it listens for an error.
                if not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue  # it is no connection


TASKS = {
    "ring": Task(_ring, in_group=True),
    "exchange": Task(_exchange, in_group=True),
    "prefetch": Task(_prefetch, in_group=True),
    "deadline": Task(_deadline, in_group=True),
}
