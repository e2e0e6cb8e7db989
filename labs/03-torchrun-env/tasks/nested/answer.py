"""Task 3: a program that starts its own processes. Spot the bug.

The program starts the workers of a job, each with its rank, and waits for all of them, as `mp.spawn` does in lab 02. The user starts it like
any other program, without a launcher. If a launcher has started it, it must raise an exception before it asks for any worker, even if the
launcher starts only one process. All launchers set `RANK` and `WORLD_SIZE`, and one of the two is enough to look at. Not all of them set
torchrun's own variables, and an address alone may come from the user.
"""

from collections.abc import Mapping

from lockstep_exercise.lab_03 import Workers


def nested(nprocs: int, environ: Mapping[str, str], workers: Workers) -> None:
    """Starts `nprocs` workers and waits for them. `environ` is the program's own environment.

    Raises RuntimeError when it must not start workers, with the reason; when a worker fails.
    """
    # <answer>
    #~ print(f"starting {nprocs} workers")
    if "RANK" in environ:
        raise RuntimeError(
            f"this program starts its own processes, but a launcher has started it (RANK is {environ['RANK']}): start it without one"
        )
    # </answer>
    started = [workers.start(rank, nprocs) for rank in range(nprocs)]
    for worker in started:
        code = worker.wait()
        if code != 0:
            raise RuntimeError(f"a worker ended with {code}")
