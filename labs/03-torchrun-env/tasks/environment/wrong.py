"""Answers to `environment`: wrong ones, and unusual right ones."""

from collections.abc import Mapping

from lockstep_exercise import edit
from lockstep_exercise.lab_03 import Worker


# Guesses what is missing, with the defaults of the tutorials.
def guesses(environ: Mapping[str, str]) -> Worker:
    return Worker(
        rank=int(environ.get("RANK", 0)),
        local_rank=int(environ.get("LOCAL_RANK", 0)),
        world_size=int(environ.get("WORLD_SIZE", 1)),
        local_world_size=int(environ.get("LOCAL_WORLD_SIZE", 1)),
        master_addr=environ.get("MASTER_ADDR", "localhost"),
        master_port=int(environ.get("MASTER_PORT", 29500)),
    )


# Guesses the address only.
@edit('text("MASTER_ADDR")', 'environ.get("MASTER_ADDR", "127.0.0.1")')
def guesses_the_address(): ...


# Reads LOCAL_RANK for RANK: in Rust both are types of their own.
@edit('number("RANK")', 'number("LOCAL_RANK")')
def local_rank(): ...


# Swaps both sizes.
@edit('world_size=number("WORLD_SIZE"),\n', 'world_size=number("LOCAL_WORLD_SIZE"),\n')
def local_size(): ...


# Leaves the texts.
@edit("return int(value)", "return value")
def texts(): ...


# Converts with `int`, whose error names the value and not the variable.
@edit("        if not value.isdecimal() or int(value) > most:\n            raise ValueError(f\"{name} is {value!r}, which is not a valid number\")\n", "")
def bare_int(): ...


# Accepts numbers below 0.
@edit("if not value.isdecimal() or int(value) > most:", 'if not value.lstrip("-").isdecimal() or int(value) > most:')
def negative(): ...


# Accepts any port and any number of processes.
@edit(" or int(value) > most", "")
def without_limits(): ...


# Does not compare the rank with the world size.
@edit("if worker.rank >= worker.world_size:", "if False:")
def unchecked(): ...


# Compares them off by one.
@edit("worker.rank >= worker.world_size", "worker.rank > worker.world_size")
def off_by_one(): ...


# One error for all.
@edit('raise ValueError(f"{name} is not set: start this program with a launcher")', 'raise ValueError("start this program with a launcher")')
def one_error(): ...


# An error that names all variables.
@edit("{name} is not set: start", "RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR or MASTER_PORT is not set: start")
def names_all(): ...


# Reads the environment of this process.
@edit("        return environ[name]\n", "        import os\n\n        return os.environ[name]\n")
def own_environment(): ...


# Right: a missing variable is a KeyError, which names it.
@edit('        if name not in environ:\n            raise ValueError(f"{name} is not set: start this program with a launcher")\n', "")
def key_error(): ...
