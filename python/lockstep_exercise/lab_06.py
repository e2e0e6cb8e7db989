"""Lab 06: how the grader's inputs reach each task's function; a disk that records and fails; snapshots; jobs that are killed or stopped; and
virtual ranks."""

import builtins
import io
import os
import random
import resource
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from .rank import Task, WrongType, a, explained, integer, integers, nothing, number, numbers, sequence

# --- Task `whole`: the part of `os` and `open` that it needs. It records each operation for the grader, which cannot switch off the power, and
# SIMULATES two failures of a disk: one that is full, and one that cannot sync.


class _DiskState:
    notes: list[dict[str, Any]] = []
    # How the disk fails: `{"FullAfter": bytes}`, "NoSync", "NoFolderSync", or not.
    failure: Any = None
    # The path of each descriptor.
    files: dict[int, Path] = {}


def _note(what: str, *paths: Path) -> None:
    _DiskState.notes.append({what: str(paths[0]) if len(paths) == 1 else [str(path) for path in paths]})


class File:
    """A file that is open for writing bytes, as `open(path, "wb")` returns it: the last bytes stay in its buffer until `flush` or `close`."""

    def __init__(self, path: Path, mode: str) -> None:
        self._path, self._file, self._buffer = path, builtins.open(path, mode, buffering=0), b""
        _DiskState.files[self._file.fileno()] = path

    def write(self, data: bytes) -> int:
        """Writes bytes: all but the last reach the kernel."""
        all_bytes = self._buffer + bytes(data)
        kept = min(len(all_bytes), io.DEFAULT_BUFFER_SIZE)
        self._buffer = all_bytes[len(all_bytes) - kept :]
        self._write(all_bytes[: len(all_bytes) - kept])
        return len(data)

    def _write(self, data: bytes) -> None:
        if not data:
            return
        _note("Wrote", self._path)
        failure = _DiskState.failure
        room = len(data)
        if isinstance(failure, dict):
            room = min(room, failure["FullAfter"])
            failure["FullAfter"] -= room
        written = 0
        while written < room:
            written += self._file.write(data[written:room]) or 0
        if room < len(data):
            raise OSError(28, "No space left on device", str(self._path))

    def flush(self) -> None:
        """Passes what is in the buffer to the kernel. The disk need not have it."""
        data, self._buffer = self._buffer, b""
        self._write(data)

    def fileno(self) -> int:
        """The file's descriptor, for `fsync`."""
        return self._file.fileno()

    def close(self) -> None:
        """Closes the file, after a `flush`."""
        try:
            if not self._file.closed:
                self.flush()
        finally:
            self._file.close()

    def __enter__(self) -> "File":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def open(path: str | os.PathLike[str], mode: str) -> File:  # noqa: A001 (its name in Python)
    """`open(path, "wb")` creates or empties a file; `open(path, "xb")` creates one that does not exist."""
    if mode not in ("wb", "xb"):
        raise ValueError(f"this `open` is for writing bytes, with mode \"wb\" or \"xb\", and not {mode!r}")
    file = File(Path(path), mode)
    _note("Created", Path(path))
    return file


def open_folder(path: str | os.PathLike[str]) -> int:
    """`os.open(path, os.O_RDONLY)`: a descriptor of a folder, for `fsync` and `os.close`."""
    descriptor = os.open(path, os.O_RDONLY)
    _DiskState.files[descriptor] = Path(path)
    return descriptor


def fsync(descriptor: int) -> None:
    """`os.fsync`: waits until everything that was written is on disk. For a folder, these are the names in it."""
    path = _DiskState.files.get(integer(descriptor, "`fsync` got"), Path("?"))
    if _DiskState.failure == ("NoFolderSync" if path.is_dir() else "NoSync"):
        raise OSError(5, "Input/output error", str(path))
    os.fsync(descriptor)
    _note("Synced", path)


def replace(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """`os.replace`: renames a file atomically. Replaces an existing file with the new name."""
    os.replace(source, target)
    _note("Renamed", Path(source), Path(target))


def remove(path: str | os.PathLike[str]) -> None:
    """`os.remove`: removes a file."""
    os.remove(path)
    _note("Removed", Path(path))


# --- Task `newest`: snapshot files. Each has a line with checksum and length, then the bytes.


def position(path: Path) -> tuple[int, int] | None:
    """The position (epoch and step) of a snapshot from its file name `snapshot-EPOCH-STEP`; None if the name has another form."""
    parts = path.name.split("-")
    if len(parts) != 3 or parts[0] != "snapshot" or not (parts[1].isdecimal() and parts[2].isdecimal()):
        return None
    return int(parts[1]), int(parts[2])


def read(path: Path) -> bytes:
    """Reads a snapshot and checks it. Raises OSError when it cannot be read, ValueError when it is torn or damaged."""
    head, newline, body = path.read_bytes().partition(b"\n")
    if not newline:
        raise ValueError("the snapshot is torn: it has no head")
    checksum, _, length = head.decode(errors="replace").partition(" ")
    if not length.isdecimal() or len(body) != int(length):
        raise ValueError(f"the snapshot is torn: it has {len(body)} bytes of {length}")
    if f"{zlib.crc32(body):08x}" != checksum:
        raise ValueError("the snapshot is damaged: its checksum is wrong")
    return body


# --- Task `next_step`: a job that can be killed.


class Killed(Exception):
    """The process was killed."""


@dataclass
class KillableJob:
    """The job's state in memory, which a kill erases, and on disk."""

    # The number of epochs, of steps in an epoch, and of steps between two snapshots.
    epochs: int
    steps: int
    save_every: int
    _model: list[tuple[int, int]] = field(default_factory=list)
    _snapshot: tuple[list[tuple[int, int]], tuple[int, int]] | None = None
    _until_kill: int | None = None
    _killed_at: int = 0
    _repeated: list[int] = field(default_factory=list)
    _saves: int = 0

    def load(self) -> tuple[int, int] | None:
        """Loads the model of the last snapshot and returns the position that was saved with it. Returns None on the first start."""
        if self._snapshot is None:
            return None
        self._model = list(self._snapshot[0])
        return self._snapshot[1]

    def train(self, epoch: int, step: int) -> None:
        """Trains the model with one step's samples. Raises Killed when the process is killed before the step."""
        if self._until_kill == 0:
            raise Killed
        if self._until_kill is not None:
            self._until_kill -= 1
        if self._killed_at >= len(self._model):
            if self._killed_at > len(self._model):
                self._repeated.append(self._killed_at - len(self._model))
            self._killed_at = 0
        self._model.append((integer(epoch, "`train` got"), integer(step, "`train` got")))

    def save(self, epoch: int, step: int) -> None:
        """Saves a snapshot of the current model, together with a position."""
        self._saves += 1
        self._snapshot = (list(self._model), (integer(epoch, "`save` got"), integer(step, "`save` got")))

    def _start(self, until_kill: int | None) -> None:
        self._killed_at = max(self._killed_at, len(self._model))
        self._model, self._until_kill = [], until_kill


# --- Task `reshard`: a job that is stopped, and started again on another number of ranks.


class _Stopped(Exception):
    pass


@dataclass(frozen=True)
class Settings:
    """What does not change from start to start."""

    # Passes over the data, and the samples of the data set.
    epochs: int
    samples: int
    # The samples in a step of one rank. The last step of an epoch may have fewer.
    batch_size: int
    seed: int


class Run:
    """One start of the job on this rank."""

    def __init__(self, settings: Settings, group: Any, saved: list[int] | None, until_stop: int | None) -> None:
        self.settings = settings
        # The number of ranks of this start. It was another one before, perhaps, and may be another one next time.
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self._group, self._until_stop, self._saved, self._steps = group, until_stop, saved, 0
        self._trained: list[tuple[int, list[int]]] = []

    def snapshot(self) -> list[int] | None:
        """The numbers that were saved last, before this start. None on the first one."""
        return None if self._saved is None else list(self._saved)

    def order(self, epoch: int) -> list[int]:
        """The order of all samples in an epoch: the same on all ranks and in all starts."""
        order = list(range(self.settings.samples))
        random.Random(f"{self.settings.seed}, {epoch}").shuffle(order)
        return order

    def train(self, epoch: int, samples: Sequence[int]) -> None:
        """Trains the model with these samples of this rank. All ranks take a step together."""
        if self._until_stop == len(self._trained):
            raise _Stopped("the job is stopped")
        dist.all_reduce(torch.tensor(len(samples)), group=self._group)
        self._trained.append((integer(epoch, "`train` got"), integers(samples, "`train` got")))

    def save(self, saved: Sequence[int]) -> None:
        """Saves the model as it is now, with numbers of your choice. All ranks call this; those of rank 0 are kept."""
        self._saved, self._steps = integers(saved, "`save` got"), len(self._trained)

    def _was_stopped(self) -> bool:
        return self._until_stop is not None and len(self._trained) >= self._until_stop

    def _end(self) -> tuple[list[int] | None, list[tuple[int, list[int]]]]:
        return self._saved, self._trained[: self._steps] if self._was_stopped() else self._trained


# --- Task `virtual_ranks`: a training whose steps virtual ranks share.


class Training:
    """A training on one of its ranks."""

    def __init__(self, given: dict[str, Any], rank: int) -> None:
        # The number of this rank, and how many there are.
        self.rank, self.ranks = rank, given["ranks"]
        # How many virtual ranks there are: at least as many as ranks.
        self.virtual_ranks = given["virtual_ranks"]
        # The samples of a virtual rank in a step.
        self.batch_size = given["batch_size"]
        self.seed = given["seed"]
        # The steps in an epoch, in which the virtual ranks take all samples.
        self.steps = given["steps"]
        self._passes: list[dict[str, Any]] = []

    def order(self, epoch: int) -> list[int]:
        """The order of all samples in an epoch: the same on all ranks."""
        order = list(range(self.steps * self.virtual_ranks * self.batch_size))
        random.Random(f"{self.seed}, {epoch}").shuffle(order)
        return order

    def train(self, virtual_rank: int, samples: Sequence[int], generator: random.Random) -> None:
        """Computes the gradient of one virtual rank. Dropout draws from `generator`."""
        drawn = [a(random.Random, generator, "a random.Random", "`train` got").getrandbits(53) for _ in range(2)]
        virtual_rank, samples = integer(virtual_rank, "`train` got"), integers(samples, "`train` got")
        self._passes.append({"virtual_rank": virtual_rank, "samples": samples, "random": drawn})


# --- Task `tree_sum`: ranks that add up the gradients of virtual ranks.


def halves(node: range) -> tuple[range, range]:
    """The two children of a node of the tree: its halves, the second of which is longer if they are not equal."""
    middle = (node.start + node.stop) // 2
    return range(node.start, middle), range(middle, node.stop)


class Ranks:
    """The ranks of the group, and the virtual ranks that they share."""

    def __init__(self, virtual_ranks: int, arrivals: list[int]) -> None:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        # How many virtual ranks there are, and those of this rank.
        self.virtual_ranks = virtual_ranks
        self.part = range(rank * virtual_ranks // ranks, (rank + 1) * virtual_ranks // ranks)
        self._arrivals, self._sent = arrivals, 0

    def tree(self) -> list[range]:
        """The nodes of the tree that have children, each after its children. The last one is the root, which covers all virtual ranks."""

        def below(node: range) -> list[range]:
            return [part for half in halves(node) for part in below(half)] + [node] if len(node) > 1 else []

        return below(range(self.virtual_ranks))

    def exchange(self, sums: dict[range, torch.Tensor]) -> list[tuple[range, torch.Tensor]]:
        """Sends sums to all ranks, and returns the sums of all ranks, also of this one, in the order in which they arrive: another one on
        each rank. All ranks call this together."""
        own = list(a(dict, sums, "a dict of sums by their nodes", "`exchange` got").items())
        for node, total in own:
            a(range, node, "a range of virtual ranks", "`exchange` got a sum of")
            a(torch.Tensor, total, "a tensor", "`exchange` got")
        self._sent += len(own)
        by_rank = self._gather(own)
        return [arrived for rank in self._arrivals for arrived in by_rank[rank]]

    def _gather(self, own: list[Any] | str) -> list[Any]:
        """The sums of all ranks, unless all have ended, each in its way."""
        by_rank: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(by_rank, own)
        ended = [(rank, how) for rank, how in enumerate(by_rank) if isinstance(how, str)]
        if ended and len(ended) < len(by_rank):
            raise RuntimeError(
                f"{len(by_rank) - len(ended)} of {len(by_rank)} ranks exchange sums, but rank {ended[0][0]} {ended[0][1]}: all ranks must call "
                "`exchange` equally often, although they have different numbers of sums"
            )
        return by_rank


# --- How inputs reach the functions.


def _next_step(answer: Callable[..., Any], given: Any) -> tuple[list[tuple[int, int]], list[int], int]:
    epochs, steps, save_every, kills = given
    job = KillableJob(epochs, steps, save_every)
    for kill in [*kills, None]:
        job._start(kill)
        try:
            answer(job)
        except Killed:
            continue
        break
    return job._model, job._repeated, job._saves


def _state(answer: Callable[..., Any], given: Any) -> tuple[list[float], str, list[int], list[float] | None]:
    initial, targets, snapshot, until = given
    steps: list[int] = []
    first: list[list[float]] = []

    def gradient(step: int, weights: list[float]) -> list[float]:
        steps.append(integer(step, "`gradient` got"))
        first.append([number(weight, "`gradient` got weights with") for weight in weights])
        return [weight - target for weight, target in zip(weights, targets[step % 2], strict=True)]

    returned = sequence(answer(gradient, list(initial), snapshot, until), "a pair of weights and a snapshot")
    if len(returned) != 2:
        raise WrongType(f"the answer returned {len(returned)} values where a pair of weights and a snapshot is asked for")
    weights = [number(weight, "the answer returned weights with") for weight in sequence(returned[0], "a list of weights")]
    return weights, a(str, returned[1], "a snapshot as a str"), steps, first[0] if first else None


def _order(answer: Callable[..., Any], given: Any) -> list[list[int]]:
    seed, samples, epochs = given
    orders = sequence(answer(seed, samples, range(epochs["start"], epochs["end"])), "a list with a list of ints for each epoch")
    if len({id(order) for order in orders}) < len(orders):
        raise WrongType("the answer returned one list several times: `append` keeps the list and not a copy, so each epoch has the last order")
    return [integers(order) for order in orders]


def _whole(answer: Callable[..., Any], given: Any) -> tuple[str | None, list[dict[str, Any]]]:
    path, length, byte, kill, failure = given
    if kill is not None:
        import signal

        # Python ignores the signal, and reports an error instead.
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (kill, kill))
    _DiskState.notes, _DiskState.failure = [], failure
    error = None
    try:
        answer(Path(path), bytes([byte]) * length)
    except OSError as raised:
        if failure is None:
            raise
        error = explained(raised)
    finally:
        _DiskState.failure = None
    return error, _DiskState.notes


def _newest(answer: Callable[..., Any], given: Any) -> dict[str, Any]:
    folder, access = given
    if access == "Readable":
        return {"Ok": _path(answer(Path(folder)))}
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if access == "NoMoreFiles":  # the process can open no file or folder
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        return {"Ok": _path(answer(Path(folder)))}
    except OSError as error:
        return {"Err": explained(error)}
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def _path(found: Any) -> str | None:
    return None if found is None else str(a((str, Path), found, "a path or None"))


def _reshard(answer: Callable[..., Any], given: Any) -> dict[str, Any]:
    settings = Settings(given["epochs"], given["samples"], given["batch_size"], given["seed"])
    done: dict[str, Any] = {"starts": [], "snapshots": [], "orders": []}
    last: list[Any] = [None]
    for ranks, until_stop in given["starts"]:
        group = dist.new_group(list(range(ranks)))
        steps: list[tuple[int, list[int]]] = []
        if dist.get_rank() < ranks:
            run = Run(settings, group, last[0], until_stop)
            try:
                nothing(answer(run))
            except _Stopped:
                if not run._was_stopped():
                    raise
            done["orders"] = [run.order(epoch) for epoch in range(settings.epochs)]
            last[0], steps = run._end()
        dist.broadcast_object_list(last, 0)
        done["starts"].append(steps)
        done["snapshots"].append(last[0])
    return done


def _virtual_ranks(answer: Callable[..., Any], given: Any) -> dict[str, Any]:
    done: dict[str, Any] = {"steps": [], "orders": []}
    for epoch, step in given["steps_of"]:
        ranks = [Training(given, rank) for rank in range(given["ranks"])]
        for run in ranks:
            nothing(answer(run, epoch, step))
        done["steps"].append([run._passes for run in ranks])
        done["orders"].append(ranks[0].order(epoch))
    return done


def _tree_sum(answer: Callable[..., Any], given: Any) -> dict[str, Any]:
    gradients = given["gradients"]
    ranks = Ranks(len(gradients), given["arrivals"][dist.get_rank()])
    kind = torch.float32 if given["single"] else torch.float64
    own = {range(v, v + 1): torch.tensor(gradients[v], dtype=torch.float64).to(kind) for v in ranks.part}
    try:
        total = answer(ranks, own)
    except Exception as error:
        ranks._gather(f"has failed ({explained(error)})")
        raise
    ranks._gather("has returned")
    return {"numbers": numbers(total), "kind": str(total.dtype).removeprefix("torch."), "sent": ranks._sent}


TASKS = {
    "next_step": Task(_next_step),
    "state": Task(_state),
    "order": Task(_order),
    "whole": Task(_whole),
    "newest": Task(_newest),
    "reshard": Task(_reshard, in_group=True),
    "virtual_ranks": Task(_virtual_ranks),
    "tree_sum": Task(_tree_sum, in_group=True),
}
