"""Task 4: one GPU for each process. Spot the bug.

A process hides all GPUs except its own from itself, so that its libraries cannot use another one by mistake. (CUDA is simulated here: see
`lockstep_exercise/lab_03.py`.) If a batch system has set `CUDA_VISIBLE_DEVICES`, it lists the GPUs of the job; the other GPUs of the node
belong to other jobs. The list has an order of its own. If it is empty, the job has no GPU.
"""

from lockstep_exercise.lab_03 import VISIBLE, CudaProcess


def visible(process: CudaProcess, local_rank: int) -> int:
    """Opens the GPU of a process, and returns what `process.open` returns. Its local rank is a position among the job's GPUs on this node.
    Afterwards the process sees only this GPU.

    `process.environ` is its environment, a dict. `process.device_count()` counts the GPUs that it sees, and `process.open(n)` opens one of them.
    Raises RuntimeError when the job has too few GPUs.
    """
    count = process.device_count()
    if local_rank >= count:
        raise RuntimeError(f"local rank {local_rank} has no GPU: there are {count}")
    listed = process.environ.get(VISIBLE)
    own = str(local_rank) if listed is None else listed.split(",")[local_rank]
    process.environ[VISIBLE] = own
    return process.open(0)
