"""Answers to `nested`: wrong ones, and unusual right ones."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from lockstep_exercise import edit
from lockstep_exercise.lab_03 import Workers


# The given program: starts workers in any case.
@edit('if "RANK" in environ:', "if False:")
def as_given(): ...


# Looks for a variable of torchrun only.
@edit('"RANK" in environ', '"TORCHELASTIC_RUN_ID" in environ')
def only_torchrun(): ...


# Looks for the local rank, which not all launchers set.
@edit('"RANK" in environ', '"LOCAL_RANK" in environ')
def local_rank(): ...


# Does not look how the workers ended.
@edit("if code != 0:", "if False:")
def ignores_failures(): ...


# Takes an end by a signal, whose code is below 0, for success.
@edit("if code != 0:", "if code > 0:")
def codes_only(): ...


# Takes an address for a launcher.
@edit('"RANK" in environ', '"MASTER_ADDR" in environ')
def any_address(): ...


# Refuses on all ranks but the first.
@edit('"RANK" in environ', 'environ.get("RANK", "0") != "0"')
def rank_0_starts(): ...


# Refuses only if there are several processes.
@edit('"RANK" in environ', 'int(environ.get("WORLD_SIZE", 1)) > 1')
def several_only(): ...


# Looks at the environment of this process.
@edit('if "RANK" in environ:', 'import os\n    if "RANK" in os.environ:')
@edit("environ['RANK']", "os.environ['RANK']")
def own_environment(): ...


# Takes a rank of 0 for none: a text that is not empty is true, but the number 0 is not.
@edit('"RANK" in environ', 'int(environ.get("RANK", 0))')
def zero_is_false(): ...


# Returns without an exception.
@edit("        raise RuntimeError(\n            f\"this", "        return print(\n            f\"this")
def returns(): ...


# An exception that says nothing of the cause.
@edit(
    "            f\"this program starts its own processes, but a launcher has started it (RANK is {environ['RANK']}): start it without one\"\n",
    '            "cannot start"\n',
)
def says_nothing(): ...


# Refuses after it has started the workers.
def too_late(nprocs: int, environ: Mapping[str, str], workers: Workers) -> None:
    started = [workers.start(rank, nprocs) for rank in range(nprocs)]
    if "RANK" in environ:
        raise RuntimeError("a launcher has started this program")
    if any([worker.wait() for worker in started]):
        raise RuntimeError("a worker failed")


# Does not wait for the workers.
def without_a_wait(nprocs: int, environ: Mapping[str, str], workers: Workers) -> None:
    if "RANK" in environ:
        raise RuntimeError("a launcher has started this program")
    for rank in range(nprocs):
        workers.start(rank, nprocs)


# Waits for each worker before it starts the next.
def one_by_one(nprocs: int, environ: Mapping[str, str], workers: Workers) -> None:
    if "RANK" in environ:
        raise RuntimeError("a launcher has started this program")
    for rank in range(nprocs):
        code = workers.start(rank, nprocs).wait()
        if code != 0:
            raise RuntimeError(f"a worker ended with {code}")


# Right: a thread waits for each worker.
def threads(nprocs: int, environ: Mapping[str, str], workers: Workers) -> None:
    if "RANK" in environ:
        raise RuntimeError("a launcher has started this program")
    with ThreadPoolExecutor(nprocs) as pool:
        codes = list(pool.map(lambda rank: workers.start(rank, nprocs).wait(), range(nprocs)))
    if any(codes):
        raise RuntimeError(f"the workers ended with {codes}")


# Ends the process instead of raising an exception.
@edit("        raise RuntimeError(\n            f\"this", "        exit(\n            f\"this")
def exits(): ...


# Right: looks at WORLD_SIZE.
@edit('"RANK" in environ', '"WORLD_SIZE" in environ')
@edit(" (RANK is {environ['RANK']})", "")
def world_size(): ...
