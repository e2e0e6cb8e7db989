"""Answers to `virtual_ranks`: wrong ones, and unusual right ones."""

import random

from lockstep_exercise import edit
from lockstep_exercise.lab_06 import Training

PART = "range(run.rank * count // run.ranks, (run.rank + 1) * count // run.ranks)"
KEY = 'random.Random(f"{run.seed}, {epoch}, {step}, {v}")'


# The given program: each rank trains one batch, its own.
def as_given(run: Training, epoch: int, step: int) -> None:
    share = run.order(epoch)[run.rank :: run.ranks]
    run.train(run.rank, share[step * run.batch_size :][: run.batch_size], random.Random(f"{run.seed}, {epoch}, {step}, {run.rank}"))


# Has the rank in the key.
@edit("{step}, {v}", "{step}, {run.rank}")
def by_rank(): ...


# Draws from one generator for all virtual ranks of the rank.
@edit(KEY, "generator")
@edit("    count =", '    generator = random.Random(f"{run.seed}, {epoch}, {step}, {run.rank}")\n    count =')
def one_generator(): ...


# Seeds Python's own generator once, and draws from it for all.
@edit(KEY, "random")
@edit("    count =", "    random.seed(run.seed)\n    count =")
def module(): ...


# Leaves the epoch out.
@edit("{run.seed}, {epoch}, ", "{run.seed}, ")
def no_epoch(): ...


# Leaves the step out.
@edit("{epoch}, {step}, ", "{epoch}, ")
def no_step(): ...


# Leaves the virtual rank out.
@edit(", {step}, {v}", ", {step}")
def no_rank(): ...


# Leaves the seed out.
@edit('f"{run.seed}, ', 'f"')
def no_seed(): ...


# Adds the numbers up.
@edit('f"{run.seed}, {epoch}, {step}, {v}"', "run.seed + epoch + step + v")
def added(): ...


# Does not seed at all.
@edit('random.Random(f"{run.seed}, {epoch}, {step}, {v}")', "random.Random()")
def unseeded(): ...


# Has the sampler of the ranks.
@edit("run.order(epoch)[v::count]", "run.order(epoch)[run.rank :: run.ranks]")
def share_of_rank(): ...


# Cuts an epoch into blocks of neighbours.
@edit("run.order(epoch)[v::count]", "run.order(epoch)[v * run.steps * run.batch_size :]")
def blocks(): ...


# Deals the virtual ranks in turns.
@edit(PART, "range(run.rank, count, run.ranks)")
def in_turns(): ...


# Rounds the parts down.
@edit(PART, "range(run.rank * (count // run.ranks), (run.rank + 1) * (count // run.ranks))")
def rounds_down(): ...


# Rounds the parts to the next number, which may be past the end.
@edit(PART, "range(run.rank * -(-count // run.ranks), min(count, (run.rank + 1) * -(-count // run.ranks)))")
def rounds_up(): ...


# Right: halves are rounded to an even number, as `round` has it, alike at the end of one part and the beginning of the next.
@edit(PART, "range(round(run.rank * count / run.ranks), round((run.rank + 1) * count / run.ranks))")
def rounded(): ...


# Right: a number for each key.
@edit('f"{run.seed}, {epoch}, {step}, {v}"', "((run.seed * 1000 + epoch) * 1000 + step) * 1000 + v")
def one_number(): ...
