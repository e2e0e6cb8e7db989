"""Answers to `whole`: wrong ones, and unusual right ones."""

from pathlib import Path

from lockstep_exercise import edit
from lockstep_exercise.lab_06 import open


# Writes onto the only copy.
def in_place(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)


# Neither flushes nor syncs the file.
@edit("        file.flush()\n        fsync(file.fileno())\n", "")
def without_a_sync(): ...


# Does not sync the folder.
@edit("        fsync(folder)\n", "        pass\n")
def without_the_folder(): ...


# Syncs after the rename.
@edit("        fsync(file.fileno())\n    replace(partial, path)\n", "        replace(partial, path)\n        fsync(file.fileno())\n")
def syncs_late(): ...


# `flush` passes the bytes to the kernel, not to the disk.
@edit("        fsync(file.fileno())\n", "")
def flushes(): ...


# `fsync` does not know of the bytes that are still in Python's buffer.
@edit("        file.flush()\n", "")
def no_flush(): ...


# Gives the half-written file the name of a snapshot.
@edit('".snapshot.partial"', '"snapshot-partial.safetensors"')
def named_as_a_snapshot(): ...


# Removes the old snapshot first.
@edit("    replace(partial, path)\n", "    if path.exists():\n        remove(path)\n    replace(partial, path)\n")
def removes_first(): ...


# Writes the new file in another folder.
@edit('path.with_name(".snapshot.partial")', 'Path("/tmp") / f"{path.parent.name}.partial"')
def in_another_folder(): ...


# Stops at what a killed save has left.
@edit('open(partial, "wb")', 'open(partial, "xb")')
def stops_at_leftovers(): ...


# Swallows the errors of the disk.
@edit("    try:\n        fsync(folder)\n    finally:\n        os.close(folder)\n", "    try:\n        fsync(folder)\n    except OSError as error:\n        print(error)\n    os.close(folder)\n")
def swallows(): ...


# Renames inside of `with`, when a file of Python may still have bytes in its buffer, and never syncs.
@edit("        fsync(file.fileno())\n    replace(partial, path)\n", "        replace(partial, path)\n")
def renames_inside(): ...


# Right: removes what is half written when the disk fails.
@edit("    with open(partial, \"wb\") as file:\n        file.write(data)\n        file.flush()\n        fsync(file.fileno())\n", "    try:\n        with open(partial, \"wb\") as file:\n            file.write(data)\n            file.flush()\n            fsync(file.fileno())\n    except OSError:\n        remove(partial)\n        raise\n")
def cleans_up(): ...


# Right: a name of its own for each process.
@edit('".snapshot.partial"', 'f".{path.name}.{os.getpid()}"')
def own_name(): ...
