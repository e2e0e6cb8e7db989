"""Answers to `prepare`: wrong ones, and unusual right ones."""

import os
import time
from pathlib import Path

import torch.distributed as dist

from lockstep_exercise import edit
from lockstep_exercise.lab_02 import Download


# The given program: all ranks download.
@edit("if dist.get_rank() == 0:", "if True:")
@edit("    dist.barrier()\n", "")
def by_all(): ...


# One rank downloads, and the others do not wait.
@edit("    dist.barrier()\n", "")
def without_a_barrier(): ...


# The barrier is where only rank 0 calls it.
@edit("    dist.barrier()\n", "        dist.barrier()\n")
def on_rank_0(): ...


# The others wait first, and rank 0 downloads after that.
@edit("if dist.get_rank() == 0:", "dist.barrier()\n    if dist.get_rank() == 0:")
@edit("        download.to(file)\n    dist.barrier()\n", "        download.to(file)\n")
def barrier_first(): ...


# The first rank that finds no file downloads it.
@edit("if dist.get_rank() == 0:", "if not file.exists():")
@edit("    dist.barrier()\n", "")
def unless_there(): ...


# Looks for the file, which is there before it is complete.
def polls(folder: Path, download: Download) -> str:
    file = folder / "digits"
    if dist.get_rank() == 0:
        os.makedirs(folder, exist_ok=True)
        download.to(file)
    while not file.exists():
        time.sleep(0.01)
    return file.read_text()


# Sleeps, usually for longer than the download takes.
def sleeps(folder: Path, download: Download) -> str:
    if dist.get_rank() == 0:
        folder.mkdir(exist_ok=True)
        download.to(folder / "digits")
    else:
        time.sleep(3)
    return (folder / "digits").read_text()


# Makes the folder on every rank without exist_ok, so that all but the first get an error.
@edit(
    "if dist.get_rank() == 0:\n        folder.mkdir(parents=True, exist_ok=True)\n",
    "folder.mkdir()\n    if dist.get_rank() == 0:\n",
)
def makes_the_folder_on_all(): ...


# Reads on rank 0 only, and returns nothing elsewhere.
def reads_once(folder: Path, download: Download) -> str | None:
    text = None
    if dist.get_rank() == 0:
        folder.mkdir(exist_ok=True)
        download.to(folder / "digits")
        text = (folder / "digits").read_text()
    dist.barrier()
    return text


# Right: the last rank downloads, and an all-reduce takes the place of the barrier.
def by_the_last(folder: Path, download: Download) -> str:
    if dist.get_rank() == dist.get_world_size() - 1:
        folder.mkdir(exist_ok=True)
        download.to(folder / "digits")
    dist.monitored_barrier()
    return (folder / "digits").read_text()


# Right: downloads under another name, and renames the file when it is complete; a rank that comes early waits.
@edit("download.to(file)", 'download.to(folder / "part"); (folder / "part").rename(file)')
def renames(): ...
