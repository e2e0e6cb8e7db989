"""Answers to `visible`: wrong ones, and unusual right ones."""

from lockstep_exercise import edit
from lockstep_exercise.lab_03 import VISIBLE, CudaProcess


# The given program: counts the devices first, which initializes CUDA.
def as_given(process: CudaProcess, local_rank: int) -> int:
    count = process.device_count()
    if local_rank >= count:
        raise RuntimeError(f"local rank {local_rank} has no GPU: there are {count}")
    listed = process.environ.get(VISIBLE)
    process.environ[VISIBLE] = str(local_rank) if listed is None else listed.split(",")[local_rank]
    return process.open(0)


# Opens a device first, and hides the others later.
def opens_first(process: CudaProcess, local_rank: int) -> int:
    gpu = process.open(local_rank)
    process.environ[VISIBLE] = str(gpu)
    return gpu


# Takes the local rank as the GPU's number, and forgets the list.
@edit("str(local_rank) if gpus is None else gpus[local_rank]", "str(local_rank)")
def forgets_the_list(): ...


# Opens the number that it had before.
@edit("return process.open(0)", "return process.open(local_rank)")
def old_number(): ...


# Hides nothing.
def hides_nothing(process: CudaProcess, local_rank: int) -> int:
    return process.open(local_rank)


# Takes an empty list for none: an empty text is false.
@edit("listed = process.environ.get(VISIBLE)", "listed = process.environ.get(VISIBLE) or None")
def empty_is_none(): ...


# Sorts the list.
@edit('listed.split(",")', 'sorted(listed.split(","))')
def sorts(): ...


# Goes around if there are too few.
@edit("gpus[local_rank]\n", "gpus[local_rank % len(gpus)]\n")
@edit("if gpus is not None and local_rank >= len(gpus):", "if False:")
def goes_around(): ...


# Takes a character of the list.
@edit('listed.split(",")', 'listed.replace(",", "")')
def characters(): ...


# Right: catches what `open` raises.
@edit("    if process.device_count() != 1:\n        raise RuntimeError(f\"local rank {local_rank} has no GPU: there is no {process.environ[VISIBLE]!r}\")\n", "")
def leaves_it_to_open(): ...
