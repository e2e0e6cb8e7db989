"""Lab 02: how the grader's inputs reach each task's function, a simulated download, and what task `distributed` trains."""

import copy
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset

from .rank import Task, WrongType, a, integers, nothing, number, numbers, sequence, tensor
from .record import RECORDER

# How often somebody looks whether another rank has gone on, for a second; and the longest sleep of another rank that is waited for.
LOOKS = 200
LOOK = 0.005
SLEEP_LOOKS = 12_000
# A shorter sleep is a look, not a guess how long something takes.
LONG_SLEEP = 0.2
_sleep = time.sleep


@dataclass
class Sampler:
    """Shuffles the samples and gives each rank its share, as PyTorch's `DistributedSampler` does, but without padding: task 1 has that, and
    nothing here waits for other ranks."""

    # The number of samples in the data set, of the ranks that share it, and of this rank.
    samples: int
    world_size: int
    rank: int
    # The seed, which is the same on all ranks, and the epoch of the next order.
    seed: int
    epoch: int = 0

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch for `indices`."""
        self.epoch = epoch

    def indices(self) -> list[int]:
        """This rank's share, in the order in which the rank visits it."""
        order = list(range(self.samples))
        random.Random(f"{self.seed}, {self.epoch}").shuffle(order)
        return order[self.rank :: self.world_size]


class Download:
    """A file to download: slow until the other ranks are done, and while one of them sleeps. Written in two parts."""

    def __init__(self, name: str, text: str, last: str, done: list[Path], sleeps: list[Path]) -> None:
        self._text, self._last, self._done, self._sleeps = text, last, done, sleeps
        # Files that are there once the last rank may come, and once it has.
        self._may_come, self._has_come = Path(f"{name}-last-may-come"), Path(f"{name}-last-has-come")
        self.count = 0

    def to(self, file: Path) -> None:
        """Downloads to this path."""
        self.count += 1
        half = len(self._text) // 2
        if self._last == "together":
            self._wait_for_others(LOOKS)
        with open(file, "w") as out:
            out.write(self._text[:half])
            out.flush()
            if self._last == "together":
                self._wait_for_others(LOOKS)
            elif self._last == "at_half":
                self._may_come.touch()
                _until(LOOKS, self._has_come.exists)
                self._wait_for_others(LOOKS // 2)
            out.write(self._text[half:])
        self._may_come.touch()

    def _come_last(self) -> None:
        """Lets the last rank come when it is to. Without a download by another rank it comes a little later."""
        _until(LOOKS, self._may_come.exists)
        if self._last == "at_end":
            _until(LOOKS // 4, self._others_are_done)
        self._has_come.touch()

    def _wait_for_others(self, looks: int) -> None:
        _until(looks, self._others_are_done)
        _until(SLEEP_LOOKS, lambda: not any(file.exists() for file in self._sleeps))

    def _others_are_done(self) -> bool:
        return all(file.exists() for file in self._done)


def _until(looks: int, holds: Callable[[], bool]) -> None:
    for _ in range(looks):
        if holds():
            return
        _sleep(LOOK)


@contextmanager
def _marked_sleep(mark: Path) -> Iterator[None]:
    """There is a file at `mark` while the answer is in a long sleep: an answer must not pass because it guessed how long others need."""

    def sleep(seconds: float) -> None:
        if seconds < LONG_SLEEP:
            return _sleep(seconds)
        mark.touch()
        try:
            _sleep(seconds)
        finally:
            mark.unlink()

    time.sleep = sleep
    try:
        yield
    finally:
        time.sleep = _sleep


# The checkpoint, on a disk that all ranks share.
CHECKPOINT = Path("checkpoint.pt")
# The first input of sample i is i / NAMES, so that a batch shows which samples it has.
NAMES = 64.0


@dataclass(frozen=True)
class Settings:
    """The settings of a training run."""

    # Passes over the data.
    epochs: int
    # The samples in a step of all ranks together, and the learning rate for it.
    batch_size: int
    lr: float
    # The seed of the order and of the initial weights.
    seed: int
    inputs: list[list[float]]
    targets: list[float]


class TrainingRun:
    """What task `distributed` trains. It records for the grader what a rank does."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._seen: dict[str, Any] = {"passes": [], "reports": [], "saves": 0, "loaded": []}

    def data(self) -> Dataset:
        """Pairs of inputs (float32 [3]) and a target (float32 [])."""
        return _Data(self.settings)

    def net(self) -> nn.Module:
        """One linear layer, whose initial weights PyTorch's generator draws: inputs [n, 3] to predictions [n]."""
        return _Net(len(self.settings.inputs[0]), self._seen)

    def report(self, epoch: int, loss: float) -> None:
        """Prints the mean loss of an epoch."""
        loss = number(loss, "report got")
        print(f"Epoch {epoch} | Loss: {loss:.4f}")
        self._seen["reports"].append((epoch, loss))

    def save(self, model: nn.Module) -> None:
        """Writes the weights to the checkpoint. Only one process at a time may do this."""
        self._seen["saves"] += 1
        _until(LOOKS, Path("asked").exists)
        # Each process has its own name for the file: a collision is counted, and does not end the run.
        own = Path(f"saved-by-{os.getpid()}.pt")
        torch.save(_unwrapped(model).state_dict(), own)
        own.rename(CHECKPOINT)

    def load(self, model: nn.Module) -> None:
        """Reads the weights back from the checkpoint."""
        if not CHECKPOINT.exists():
            Path("asked").touch()
            raise FileNotFoundError("there is no checkpoint yet")
        state = torch.load(CHECKPOINT, weights_only=True)
        _unwrapped(model).load_state_dict(state)
        self._seen["loaded"].append(numbers(state["weight"]) + numbers(state["bias"]))


def _unwrapped(model: nn.Module) -> nn.Module:
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model


class _Data(Dataset):
    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def __len__(self) -> int:
        return len(self.settings.targets)

    def __getitem__(self, sample: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor(self.settings.inputs[sample]), torch.tensor(self.settings.targets[sample])


class _Net(nn.Module):
    def __init__(self, inputs: int, seen: dict[str, Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs).uniform_(-0.5, 0.5))
        self.bias = nn.Parameter(torch.empty(1).uniform_(-0.5, 0.5))
        self._seen = seen

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Net":
        other = _Net(self.weight.numel(), self._seen)
        other.load_state_dict(copy.copy(self.state_dict()))
        return other

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            samples = [round(name * NAMES) for name in numbers(inputs[:, 0])]
            self._seen["passes"].append({"weights": numbers(self.weight) + numbers(self.bias), "samples": samples})
        return inputs @ self.weight + self.bias


def _shard(answer: Callable[..., Any], given: Any) -> list[int]:
    return integers(answer(*given))


def _average(answer: Callable[..., Any], given: Any) -> list[list[float]]:
    shapes, by_rank = given
    gradients = [tensor(values).reshape(shape) for values, shape in zip(by_rank[dist.get_rank()], shapes, strict=True)]
    before = [numbers(gradient) for gradient in gradients]
    returned = answer(gradients)
    if len(gradients) != len(before):
        raise WrongType(f"the answer left {len(gradients)} of {len(before)} gradients in the list")
    after = [numbers(gradient, "`gradients` now has") for gradient in gradients]
    if after == before:
        nothing(returned)
    return after


def _epochs(answer: Callable[..., Any], given: Any) -> list[list[int]]:
    samples, seed, begin, end = given
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    returned = answer(Sampler(samples, world_size, rank, seed), range(begin, end))
    visited = sequence(returned, "a list with a list of ints for each epoch")
    if len({id(epoch) for epoch in visited}) < len(visited):
        raise WrongType(
            "the answer returned one list several times: `append` keeps the list and not a copy, so each epoch has the last order"
        )
    return [integers(epoch) for epoch in visited]


def _line(answer: Callable[..., Any], given: Any) -> tuple[list[float], int]:
    by_rank, batch_size, rate = given
    x, y = zip(*by_rank[dist.get_rank()], strict=True)
    before = RECORDER.bytes()
    line = numbers(answer(tensor(x), tensor(y), batch_size, rate))
    return line, RECORDER.bytes() - before


def _prepare(answer: Callable[..., Any], given: Any) -> tuple[int, str]:
    text, last = given
    folder = {"together": "data", "at_half": "data-at-half", "at_end": "data-at-end"}[last]
    own, size = dist.get_rank(), dist.get_world_size()
    done = [Path(f"{folder}-rank-{rank}-is-done") for rank in range(size)]
    sleeps = [Path(f"{folder}-rank-{rank}-sleeps") for rank in range(size)]
    others = [rank for rank in range(size) if rank != own]
    download = Download(folder, text, last, [done[rank] for rank in others], [sleeps[rank] for rank in others])
    dist.barrier()
    if last != "together" and own + 1 == size:
        download._come_last()
    try:
        with _marked_sleep(sleeps[own]):
            read = answer(Path(folder), download)
    finally:
        done[own].touch()
    return download.count, a(str, read, "the text of the file")


def _distributed(answer: Callable[..., Any], given: Any) -> tuple[list[int], dict[str, Any]]:
    job = TrainingRun(Settings(**given))
    answer(job)
    return RECORDER.groups, job._seen


TASKS = {
    "shard": Task(_shard),
    "average": Task(_average, in_group=True),
    "epochs": Task(_epochs),
    "line": Task(_line, in_group=True),
    "prepare": Task(_prepare, in_group=True),
    # Optimizers import it.
    "distributed": Task(_distributed, imports=("torch._dynamo",)),
}
