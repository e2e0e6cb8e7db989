"""One rank: reads the grader's call, calls the learner's function with each input, and leaves the answer.

The counterpart of `crates/exercise`; `crates/rank-messages/src/exercise.rs` describes the files. An exception, a `NotImplementedError` and a
result of another type are outcomes, too. This module does not know which results are right.
"""

import importlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from . import record, source

# The variables that name the file with the call and the folder for the answers.
CALL = "LOCKSTEP_CALL"
ANSWERS = "LOCKSTEP_ANSWERS"
# The file that allows the ranks to exit, and a rank's file with what its source and its calls show.
DISMISSED = "dismissed"
NOTES = "rank-{rank}.notes"
# How often a rank looks for the others, in seconds.
POLL = 0.002
# Parts of Gloo's messages on a rank that has lost another.
LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "connection was closed")
# Parts of messages of PyTorch, and what they mean; and what says nothing in them.
MEANINGS = (
    ("is not part of group", "`src` and `dst` are ranks of the whole job, also in a group"),
    ("but is not part of the group", "this rank is not in the group, so it must not call its operations"),
)
OBJECT = re.compile(r" <torch\.[^>]*>|\[/[^\]]*\.cc:\d+\] ")
# The largest whole number that a grader reads.
LARGEST = 2**63 - 1
# What follows a message of libtorch, for its developers.
FRAMES = "\nException raised from "


class WrongType(Exception):
    """The answer returned something else than was asked for."""


class Misunderstood(Exception):
    """The grader and this runtime do not fit together."""


@dataclass(frozen=True)
class Task:
    """How the grader's inputs reach a task's function, and its results get back."""

    # Called with the learner's function and one input.
    run: Callable[[Callable[..., Any], Any], Any]
    # If true, all ranks join a process group once, before the first input.
    in_group: bool = False
    # Modules that PyTorch imports late, which takes seconds: the process that is copied imports them.
    imports: tuple[str, ...] = ()


def tasks_of(lab: str) -> dict[str, Task]:
    """The tasks of a lab, by its number, `02`."""
    return importlib.import_module(f"lockstep_exercise.lab_{lab}").TASKS


def prepare(tasks: dict[str, Task], variables: dict[bytes, bytes]) -> None:
    """Imports what the task of a request needs, before copies are made."""
    call = Path(os.fsdecode(variables.get(os.fsencode(CALL), b"")))
    task = tasks.get(json.loads(call.read_bytes())["task"].partition("/")[0]) if call.is_file() else None
    for module in task.imports if task else ():
        importlib.import_module(module)


class Answers:
    """The folder in which ranks write their answers."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder, self.rank = folder, rank

    def leave(self, answer: dict[str, Any]) -> None:
        """Writes this rank's answer, atomically."""
        unfinished = self.folder / f"rank-{self.rank}.partial"
        unfinished.write_text(json.dumps(answer))
        unfinished.rename(self.folder / f"rank-{self.rank}.json")

    def begin(self, number: int) -> None:
        """Records that this rank begins with an input."""
        (self.folder / f"rank-{self.rank}.begun").write_text(str(number))

    def note(self, notes: list[str]) -> None:
        """Records what the source and the calls show."""
        (self.folder / NOTES.format(rank=self.rank)).write_text(json.dumps(notes))

    def meet(self, ranks: int) -> None:
        """Waits until all ranks are connected. The grader's deadline ends a wait for one that has died."""
        (self.folder / f"rank-{self.rank}.joined").touch()
        others = [self.folder / f"rank-{rank}.joined" for rank in range(ranks)]
        while not all(file.exists() for file in others) and not self.dismissed():
            time.sleep(POLL)

    def dismissed(self) -> bool:
        """Returns true if the ranks may exit: the grader allowed it, or removed the folder."""
        return (self.folder / DISMISSED).exists() or not self.folder.exists()


def main(tasks: dict[str, Task], folder: Path) -> NoReturn:
    """Runs the task that the grader requests, and ends the process."""
    rank = int(os.environ.get("RANK", "0"))
    call, answers = Path(os.environ[CALL]), Answers(Path(os.environ[ANSWERS]), rank)
    torch.set_num_threads(1)
    record.install()
    sleep = time.sleep  # an answer may replace it
    answers.leave(_answer(tasks, folder, call, answers))
    while not answers.dismissed():
        sleep(POLL)
    _end(0)


def _end(code: int) -> NoReturn:
    """Ends the process without destroying groups, for whose threads PyTorch may wait."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _answer(tasks: dict[str, Task], folder: Path, call: Path, answers: Answers) -> dict[str, Any]:
    request = json.loads(call.read_bytes())
    name, inputs = request["task"], request["inputs"]
    task = tasks.get(name.partition("/")[0])
    if task is None:
        return {"answer": "misunderstood", "why": f"there is no task {name} in Python"}
    loaded = None
    try:
        loaded = source.load(folder, name)
        answers.note(source.notes(loaded))
        if task.in_group:
            join()
            answers.meet(dist.get_world_size())
        outputs = []
        for number, value in enumerate(inputs):
            answers.begin(number)
            with record.Reads():
                outputs.append(_plain(task.run(loaded.function, value)))
        seen = source.notes(loaded)
        # One that is dropped has been said, with its line.
        seen += [note for note in record.RECORDER.notes() if not any("drops the request" in one for one in seen)]
        answers.note(seen)
        return {"answer": "done", "outputs": outputs}
    except SystemExit as error:
        _end(error.code if isinstance(error.code, int) else int(error.code is not None))
    except WrongType as error:
        return {"answer": "wrong_type", "why": str(error)}
    except Misunderstood as error:
        return {"answer": "misunderstood", "why": str(error)}
    except SyntaxError as error:
        # In the answer's file, or in one that it imports.
        place = f"{source.shown(Path(error.filename or name))}:{error.lineno}"
        return {"answer": "raised", "error": f"{type(error).__name__}: {error.msg}", "place": place}
    except BaseException as error:
        place, is_own = loaded.place(error.__traceback__) if loaded else _loading(folder, error)
        if isinstance(error, NotImplementedError) and is_own:
            return {"answer": "not_started", "what": str(error)}
        return {"answer": "raised", "error": explained(error), "place": place}


def _loading(folder: Path, error: BaseException) -> tuple[str | None, bool]:
    """The place of an exception that was raised while the answer's file was loaded."""
    place, traceback = None, error.__traceback__
    while traceback is not None:
        path = Path(traceback.tb_frame.f_code.co_filename)
        if path.is_relative_to(folder):
            place = f"{source.shown(path)}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return place, False


def explained(error: BaseException) -> str:
    """The type and the message of an exception, without frames of C++, and what it means."""
    text = str(error).partition(FRAMES)[0].strip()
    if isinstance(error, OSError) and error.errno is not None:
        text = f"{error.strerror}: {error.filename} (os error {error.errno})"
    text = OBJECT.sub("", text)
    what = f"{type(error).__name__}: {text}" if text else type(error).__name__
    for part, meaning in MEANINGS:
        if part in text:
            return f"{what}: {meaning}"
    if any(part in text for part in LOST):
        return f"{what}. This rank has lost a peer in the call"
    return what


def join() -> None:
    """Joins the group of all ranks, in the store of the grader."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", store=record.connect(rank, ranks), rank=rank, world_size=ranks)


def _plain(value: Any) -> Any:
    """A result as JSON has it: NaN and infinities as the grader reads them."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    return value


# What an answer returns is checked here, since nothing has checked it before it ran.


def tensor(numbers: Sequence[float]) -> torch.Tensor:
    """Numbers as a tensor of shape [n] (float64)."""
    return torch.tensor(numbers, dtype=torch.float64)


def numbers(value: Any, what: str = "the answer returned") -> list[float]:
    """The numbers of a tensor of any shape, row by row."""
    return a(torch.Tensor, value, "a tensor", what).detach().flatten().to(torch.float64).tolist()


def number(value: Any, what: str = "the answer returned") -> float:
    """One number, also that of a tensor with one element."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise WrongType(_wrong(value, "a number", what))
    return float(value)


def integer(value: Any, what: str = "the answer returned") -> int:
    """A whole number from 0 on."""
    value = any_integer(value, what)
    if value < 0:
        raise WrongType(f"{what} {value} where a number from 0 on is asked for")
    return min(value, LARGEST)


def any_integer(value: Any, what: str = "the answer returned") -> int:
    """A whole number."""
    if isinstance(value, torch.Tensor) and value.numel() == 1 and not value.is_floating_point():
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int):
        raise WrongType(_wrong(value, "an int", what))
    return value


def sequence(value: Any, wanted: str, what: str = "the answer returned") -> list[Any]:
    """A list, a tuple or a range."""
    return list(a((list, tuple, range), value, wanted, what))


def integers(value: Any, what: str = "the answer returned") -> list[int]:
    """A list of whole numbers."""
    each = sequence(value, "a list of ints", what)
    return [integer(part, "the answer returned a list with") for part in each]


def nothing(value: Any) -> None:
    """What a function returns that changes its arguments."""
    if value is not None:
        raise WrongType(
            f"the answer returned {_named(value)}, and the caller does not look at it: this function changes what it is given, in place"
        )


def a(types: Any, value: Any, wanted: str, what: str = "the answer returned") -> Any:
    """The value, if it is one of these types."""
    if not isinstance(value, types):
        raise WrongType(_wrong(value, wanted, what))
    return value


def _wrong(value: Any, wanted: str, what: str) -> str:
    why = f"{what} {_named(value)} where {wanted} is asked for"
    # Of a field, it is not the function that may lack a `return`.
    if value is None and " whose " not in what:
        why += ": a path through the function ends without `return`, or returns the value of a call that has none"
    return why


def _named(value: Any) -> str:
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
