"""Task 4: a snapshot that a kill cannot tear.

A process may be killed in the middle of a write, and a machine may lose power. Then either the whole old snapshot or the whole new one must
be there. A half-written file must not have the name of a snapshot: `snapshot-….safetensors`. Once this function has returned, the new
snapshot and its name survive a power failure. The next start saves in the same folder: what a killed save has left there must not stop it.
The new bytes go into another file of the same folder first; the old snapshot keeps its name until the new one takes it. If a write or a sync
fails (the disk is full or broken), the exception is raised.

`lockstep_exercise.lab_06` has `open`, `fsync`, `replace` and `remove`, which do what `open` and `os` do, and show the grader which operations
you perform and in which order; and `open_folder`, a descriptor of a folder, which `os.close` closes.
"""

import os
from pathlib import Path

from lockstep_exercise.lab_06 import fsync, open, open_folder, remove, replace


def whole(path: Path, data: bytes) -> None:
    """Saves `data` in the file `path`, which may contain an old snapshot."""
    # `path.with_name("…")` is a file in the same folder, and `path.parent` is the folder, which can be opened and synced, too.
    # `with open(path, "wb") as file:` has `file.write(data)`; `file.flush()` passes what is still in its buffer to the kernel, and
    # `fsync(file.fileno())` waits until what the kernel has is on disk.
    raise NotImplementedError("save all of the bytes or none")
