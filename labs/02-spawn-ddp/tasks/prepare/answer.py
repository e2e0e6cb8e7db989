"""Task 5: once for all ranks. Spot the bug.

Before the first step, the data must be on disk: a folder that contains a downloaded file. All ranks of a machine share its disk.
"""

from pathlib import Path

import torch.distributed as dist

from lockstep_exercise.lab_02 import Download


def prepare(folder: Path, download: Download) -> str:
    """Creates the folder, downloads the file `digits` into it, and returns the text that this rank reads from it.

    `download.to(path)` downloads to that path, which takes a while.
    """
    file = folder / "digits"
    # <answer>
    #~ folder.mkdir(parents=True, exist_ok=True)
    #~ download.to(file)
    if dist.get_rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        download.to(file)
    dist.barrier()
    # </answer>
    return file.read_text()
