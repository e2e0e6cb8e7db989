"""Answers to `reshard`: wrong ones, and unusual right ones."""

from lockstep_exercise import edit
from lockstep_exercise.lab_06 import Run


# The given program: counts steps, whatever the number of ranks was.
def as_given(run: Run) -> None:
    first, done = run.snapshot() or [0, 0]
    batch = run.settings.batch_size
    for epoch in range(first, run.settings.epochs):
        share = run.order(epoch)[run.rank :: run.ranks]
        for step in range(done if epoch == first else 0, -(-len(share) // batch)):
            run.train(epoch, share[step * batch : (step + 1) * batch])
            run.save([epoch, step + 1])


# Saves the samples of this rank.
@edit("run.save([epoch, taken])", "run.save([epoch, taken // run.ranks])")
def of_one_rank(): ...


# Starts the epoch again.
@edit("taken = done if epoch == first else 0", "taken = 0")
def starts_again(): ...


# Skips the rest of the epoch.
@edit("first, done = run.snapshot() or [0, 0]", "first, done = run.snapshot() or [0, 0]\n    first, done = (first + 1, 0) if done else (first, done)")
def skips_the_rest(): ...


# Begins each epoch where the first one was stopped.
@edit("taken = done if epoch == first else 0", "taken = done")
def each_epoch(): ...


# Gives all ranks the whole step.
@edit("step[run.rank :: run.ranks]", "step")
def whole_steps(): ...


# Takes a batch of one rank for all.
@edit("run.settings.batch_size * run.ranks", "run.settings.batch_size")
def small_steps(): ...


# Counts a whole step at the end of an epoch, where there are fewer samples, and wraps around.
@edit("taken += len(step)", "taken += each")
@edit("order[taken : taken + each]", "(order + order)[taken : taken + each]")
def wraps(): ...


# Ranks without samples leave the last step out.
@edit("            run.train(epoch, step[run.rank :: run.ranks])\n", "            if run.rank < len(step):\n                run.train(epoch, step[run.rank :: run.ranks])\n")
def leaves_out(): ...


# Right: gives each rank a block of the step.
@edit("step[run.rank :: run.ranks]", "step[run.rank * run.settings.batch_size :][: run.settings.batch_size]")
def blocks(): ...


# Right: counts past the end of the epoch.
@edit("taken += len(step)", "taken += each")
def past_the_end(): ...
