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
    # <answer>
    #~ # `Worker(rank=…, local_rank=…, world_size=…, local_world_size=…, master_addr=…, master_port=…)`. Like `os.environ`, `environ` has
    #~ # only texts; `int("3")` is 3, and so is `int(" +3_")` nearly: `text.isdecimal()` is true for digits alone.
    #~ raise NotImplementedError("read the six variables")
    def text(name: str) -> str:
        if name not in environ:
            raise ValueError(f"{name} is not set: start this program with a launcher")
        return environ[name]

    def number(name: str, most: int = 2**31 - 1) -> int:
        value = text(name)
        if not value.isdecimal() or int(value) > most:
            raise ValueError(f"{name} is {value!r}, which is not a valid number")
        return int(value)

    worker = Worker(
        rank=number("RANK"),
        local_rank=number("LOCAL_RANK"),
        world_size=number("WORLD_SIZE"),
        local_world_size=number("LOCAL_WORLD_SIZE"),
        master_addr=text("MASTER_ADDR"),
        master_port=number("MASTER_PORT", 65535),
    )
    if worker.rank >= worker.world_size:
        raise ValueError(f"RANK is {worker.rank}, but WORLD_SIZE is {worker.world_size}")
    return worker
    # </answer>
