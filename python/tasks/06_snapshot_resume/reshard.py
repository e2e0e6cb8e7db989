"""Task 6: resume on another number of ranks. Spot the bug.

A job saves after each step. It is stopped in the middle of an epoch and started again, perhaps with more ranks, perhaps with fewer, and
perhaps several times in one epoch. In each epoch, all starts together must train the model with each sample once. `batch_size` counts the
samples of one rank, so a step of three ranks has more samples than a step of two. All ranks take each step together: in the last one of an
epoch, a rank may have fewer samples than others, or none. A job may also be stopped right after that step.
"""

from lockstep_exercise.lab_06 import Run


def reshard(run: Run) -> None:
    """Trains to the end of the last epoch, from the snapshot if there is one, on `run.ranks` ranks."""
    # This resumes well as long as the number of ranks stays the same.
    first, done = run.snapshot() or [0, 0]
    batch = run.settings.batch_size
    for epoch in range(first, run.settings.epochs):
        share = run.order(epoch)[run.rank :: run.ranks]
        begin = done if epoch == first else 0
        for step in range(begin, -(-len(share) // batch)):
            run.train(epoch, share[step * batch : (step + 1) * batch])
            run.save([epoch, step + 1])
