"""Answers to `newest`: wrong ones, and unusual right ones."""

from pathlib import Path

from lockstep_exercise import edit
from lockstep_exercise.lab_06 import position, read


# Sorts the names as texts: step 9 comes after step 10.
@edit("key=position, reverse=True", "reverse=True")
def by_name(): ...


# Takes the newest by the time of its last change.
@edit("key=position", "key=lambda path: path.stat().st_mtime")
def by_time(): ...


# Does not check the file.
@edit("            read(path)\n", "            pass\n")
def unchecked(): ...


# Lets a torn file stop it.
@edit("(OSError, ValueError)", "OSError")
def stops_at_torn(): ...


# Gives up after the newest.
@edit("            continue\n", "            return None\n")
def only_the_newest(): ...


# Takes the oldest.
@edit(", reverse=True", "")
def oldest(): ...


# Takes each error of the folder for no snapshot.
@edit("except FileNotFoundError:", "except OSError:")
def any_error(): ...


# Asks whether it is a folder, and takes a file, or a folder that it may not look at, for the first start.
@edit("    try:\n        paths = [path for path in folder.iterdir() if position(path) is not None]\n    except FileNotFoundError:\n        return None\n",
      "    if not folder.is_dir():\n        return None\n    paths = [path for path in folder.iterdir() if position(path) is not None]\n")
def is_dir(): ...


# Skips files that are torn, and lets one that cannot be read stop it.
@edit("(OSError, ValueError)", "ValueError")
def unreadable_file(): ...


# Takes a folder that does not exist for an error.
@edit("except FileNotFoundError:", "except NotADirectoryError:")
def no_first_start(): ...


# Reads all files, and takes what is no snapshot for one.
@edit("if position(path) is not None", "if path.is_file()")
@edit("key=position", "key=lambda path: position(path) or (0, 0)")
def all_files(): ...


# Looks only at the epoch.
@edit("key=position", "key=lambda path: position(path)[0]")
def by_epoch(): ...


# Right: asks first whether the folder exists.
def asks_first(folder: Path) -> Path | None:
    if not folder.exists():
        return None
    good = []
    for path in folder.iterdir():
        try:
            if position(path) is not None and read(path) is not None:
                good.append(path)
        except (OSError, ValueError):
            print(f"{path} is no good snapshot")
    return max(good, key=position, default=None)
