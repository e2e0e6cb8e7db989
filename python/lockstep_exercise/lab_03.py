"""Lab 03: how the grader's inputs reach each task's function; and SIMULATED: the part of CUDA that task 4 needs, and workers.

The real CUDA behaves in the same way: it reads `CUDA_VISIBLE_DEVICES` once, at the first call that needs the devices, and never again. The
process then sees only the listed GPUs, in the order of the list, and numbers them from 0. So does PyTorch: `torch.cuda.device_count()` is
such a call.
"""

import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .rank import Task, WrongType, a, any_integer, explained, integer

# The variable that lists the numbers of the GPUs that a process may see, such as `2,3`. If the list is empty, it sees none.
VISIBLE = "CUDA_VISIBLE_DEVICES"


# What a worker does: it records its rank, and waits until all workers have done so, as `init_process_group` does. The last one writes a
# line for each into the gate. The worker then takes ten short naps: half a second, and more on a busy machine. If the program that started
# it has ended by then, it keeps running, like a worker that no process waits for. If one is to fail, a signal kills it after its naps, and the
# others take none.
WORKER = """
mkfifo "$GATE" 2>/dev/null
exec 3<>"$GATE"
echo $RANK >> "$NOTES"
if [ $(wc -l < "$NOTES") -ge $WORLD_SIZE ]; then for each in $(seq $WORLD_SIZE); do echo >&3; done; fi
read line <&3
[ "${FAILS:-$RANK}" = $RANK ] || exit 0
for nap in 1 2 3 4 5 6 7 8 9 10; do sleep 0.05; done
[ "$FAILS" != $RANK ] || kill -KILL $$
if [ -e "$OVER" ]; then sleep 60; fi
"""


@dataclass(frozen=True)
class Worker:
    """A process's place in its job."""

    # Its number among all processes of the job, and among those of its node.
    rank: int
    local_rank: int
    # The number of processes in the job, and on its node.
    world_size: int
    local_world_size: int
    # The host and the port of the store.
    master_addr: str
    master_port: int


@dataclass(frozen=True)
class Decisions:
    """What a process derives from its place."""

    # The rank with which it joins the process group.
    group_rank: int
    # The number of its GPU on its node.
    gpu: int
    # True if it saves the snapshots. Exactly one process of the job does.
    saves: bool


class CudaProcess:
    """A process on a machine with GPUs."""

    def __init__(self, gpus: int, environ: dict[str, str]) -> None:
        # Its environment, as `os.environ`.
        self.environ = environ
        self._gpus = gpus
        self._visible: list[int] | None = None
        self._opened: int | None = None

    def device_count(self) -> int:
        """The number of GPUs that it sees. Initializes CUDA."""
        return len(self._see())

    def open(self, device: int) -> int:
        """Opens the GPU with this number among those that it sees, and returns its number on the machine. Initializes CUDA."""
        gpus = self._see()
        if not 0 <= integer(device, "`open` got") < len(gpus):
            raise RuntimeError(f"CUDA error: invalid device ordinal ({device} of {len(gpus)} devices)")
        self._opened = gpus[device]
        return self._opened

    def _see(self) -> list[int]:
        if self._visible is None:
            self._visible = []
            for word in self.environ.get(VISIBLE, ",".join(map(str, range(self._gpus)))).split(","):
                # An invalid number hides all entries after it, too.
                if not word.strip().isdecimal() or int(word) >= self._gpus:
                    break
                self._visible.append(int(word))
        return self._visible


class Workers:
    """The workers that a program starts."""

    def __init__(self, launched: bool, fails: int | None) -> None:
        self._launched, self._asked, self._fails = launched, [], "" if fails is None else str(fails)
        self._notes, self._over, self._gate = (Path(f"{name}-{os.getpid()}") for name in ("notes", "over", "gate"))
        for file in (self._notes, self._over, self._gate):
            file.unlink(missing_ok=True)

    def start(self, rank: int, world_size: int) -> subprocess.Popen[bytes]:
        """Starts one worker, with its rank in its environment, and returns at once. `wait()` waits for its end and returns its exit code.

        The worker itself waits for all others, as `init_process_group` does.
        """
        self._asked.append(rank)
        place = {"RANK": str(rank), "WORLD_SIZE": str(world_size)}
        files = {"NOTES": str(self._notes), "OVER": str(self._over), "GATE": str(self._gate), "FAILS": self._fails}
        return subprocess.Popen(["sh", "-c", ":" if self._launched else WORKER], env={**os.environ, **place, **files})

    def _started(self) -> list[int]:
        """The ranks of the workers that have run. A launched program may start none, so each counts that was asked for."""
        self._over.touch()  # only workers that still run read it
        text = self._notes.read_text() if self._notes.exists() else ""
        return sorted(self._asked if self._launched else map(int, text.split()))


def _with_text(run: Callable[[], Any], *mistakes: type[Exception]) -> dict[str, Any]:
    """A result, or the text of the exception that is raised; not of one that is a mistake in this task."""
    try:
        return {"Ok": run()}
    except (WrongType, NotImplementedError, AttributeError, NameError, *mistakes):
        raise
    except Exception as error:
        return {"Err": str(error) if not isinstance(error, (KeyError, OSError)) else explained(error)}


def _environment(answer: Callable[..., Any], variables: Any) -> dict[str, Any]:
    def run() -> list[str]:
        worker = a(Worker, answer(variables), "a Worker")
        what = "the answer returned a Worker whose {} is"
        names = ("rank", "local_rank", "world_size", "local_world_size", "master_port")
        *place, port = (str(any_integer(getattr(worker, name), what.format(name))) for name in names)
        return [*place, a(str, worker.master_addr, "a str", what.format("master_addr")), port]

    return _with_text(run)


def _device(answer: Callable[..., Any], given: Any) -> dict[str, Any]:
    rank, local_rank, world_size, local_world_size, gpus = given
    worker = Worker(rank, local_rank, world_size, local_world_size, "node-0", 29500)

    def run() -> list[Any]:
        place = a(Decisions, answer(worker, gpus), "Decisions")
        return [integer(place.group_rank), integer(place.gpu), bool(place.saves)]

    return _with_text(run)


def _nested(answer: Callable[..., Any], given: Any) -> list[Any]:
    nprocs, by_rank, fails = given
    environ: Mapping[str, str] = by_rank[int(os.environ["RANK"])]
    workers = Workers("RANK" in environ, fails)
    ended = _with_text(lambda: answer(nprocs, environ, workers))
    return [workers._started(), ended.get("Err")]


def _visible(answer: Callable[..., Any], given: Any) -> list[Any]:
    gpus, environ, local_rank = given
    process = CudaProcess(gpus, environ)
    returned = _with_text(lambda: integer(answer(process, local_rank)), IndexError)
    return [returned, process._opened, process.environ.get(VISIBLE), process.device_count()]


TASKS = {
    "environment": Task(_environment),
    "device": Task(_device),
    "nested": Task(_nested),
    "visible": Task(_visible),
}
