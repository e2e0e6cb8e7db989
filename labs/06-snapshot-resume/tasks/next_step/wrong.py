"""Answers to `next_step`: wrong ones, and unusual right ones."""

from lockstep_exercise import edit
from lockstep_exercise.lab_06 import KillableJob


# The given program: saves the step that is done.
@edit("job.save(*following)", "job.save(epoch, step)")
def as_given(): ...


# Starts at the beginning of the epoch.
@edit("begin = first_step if epoch == first_epoch else 0", "begin = 0")
def whole_epoch(): ...


# Begins each epoch at the step of the first.
@edit("begin = first_step if epoch == first_epoch else 0", "begin = first_step")
def each_epoch(): ...


# Saves before the step.
def saves_before(job: KillableJob) -> None:
    first_epoch, first_step = job.load() or (0, 0)
    for epoch in range(first_epoch, job.epochs):
        for step in range(first_step if epoch == first_epoch else 0, job.steps):
            if (step + 1) % job.save_every == 0:
                job.save(epoch, step + 1)
            job.train(epoch, step)


# Saves after each step.
@edit("if (step + 1) % job.save_every == 0:", "if True:")
def each_step(): ...


# Never loads.
@edit("job.load() or (0, 0)", "(0, 0)")
def never_loads(): ...


# Takes the position and forgets the model: loads nothing when the kill came first.
@edit("job.load() or (0, 0)", "job.load()")
def first_start(): ...


# Saves once an epoch.
@edit("if (step + 1) % job.save_every == 0:", "if step + 1 == job.steps:")
def once_an_epoch(): ...


# Swallows the kill, and goes on.
@edit("            job.train(epoch, step)\n", "            try:\n                job.train(epoch, step)\n            except Exception:\n                pass\n")
def swallows(): ...


# Right: leaves the step after the last one as it is, and the next start begins with an empty rest of the epoch.
@edit("(epoch + 1, 0) if step + 1 == job.steps else (epoch, step + 1)", "(epoch, step + 1)")
def past_the_end(): ...
