"""Task 1: where to continue. Spot the bug.

A run saves a snapshot every few steps, and not more often, since a save takes time. If it is killed at any moment and started again, it must
end with a model that was trained exactly once with every step of every epoch, in order. The steps since the last snapshot are repeated,
because the loaded model has not seen them. Other steps are not repeated.
"""

from lockstep_exercise.lab_06 import KillableJob


def next_step(job: KillableJob) -> None:
    """Trains to the end of the last epoch, from the snapshot if there is one. `job.train` raises Killed, which you let pass."""
    first_epoch, first_step = job.load() or (0, 0)
    for epoch in range(first_epoch, job.epochs):
        begin = first_step if epoch == first_epoch else 0
        for step in range(begin, job.steps):
            job.train(epoch, step)
            if (step + 1) % job.save_every == 0:
                job.save(epoch, step)
