"""Task 2: who am I here, and who in the job? Spot the bug.

A process needs its place for three decisions: its rank in the process group, its GPU, and whether it is the one process of the job that
saves. Nodes may have different numbers of GPUs.
"""

from lockstep_exercise.lab_03 import Decisions, Worker


def device(worker: Worker, gpus: int) -> Decisions:
    """Decides for a process on a node with `gpus` GPUs. The first process of a node uses GPU 0, the second GPU 1.

    Raises RuntimeError when the node has no GPU left for this process. `Decisions(group_rank, gpu, saves)` has the rank with which the process
    joins the group, the number of its GPU on its node, and whether it saves, which exactly one process of the job does.
    """
    if worker.local_rank >= gpus:
        raise RuntimeError(f"local rank {worker.local_rank} (rank {worker.rank}) has no GPU: this node has {gpus}")
    # <answer>
    #~ return Decisions(group_rank=worker.local_rank, gpu=worker.local_rank, saves=worker.local_rank == 0)
    return Decisions(group_rank=worker.rank, gpu=worker.local_rank, saves=worker.rank == 0)
    # </answer>
