"""Task 1: who am I?

A launcher gives each process its place in six variables with torchrun's names: `RANK`, `LOCAL_RANK`, `WORLD_SIZE`, `LOCAL_WORLD_SIZE`,
`MASTER_ADDR`, `MASTER_PORT`. A process that guesses a missing value trains alone on all of the data, next to others that do the same.
"""

from collections.abc import Mapping

from lockstep_exercise.lab_03 import Worker


def environment(environ: Mapping[str, str]) -> Worker:
    """Reads the place of a process from its variables, `environ`, which need not be those of this process.

    Raises an exception when a variable is not set or is not a valid number: its text says which one, by its name. No job has 2**31
    processes, and a port is at most 65535. It also raises one when the rank is not below the world size: you choose that text.
    """
    # `Worker(rank=…, local_rank=…, world_size=…, local_world_size=…, master_addr=…, master_port=…)`. Like `os.environ`, `environ` has
    # only texts; `int("3")` is 3, and so is `int(" +3_")` nearly: `text.isdecimal()` is true for digits alone.
    raise NotImplementedError("read the six variables")
