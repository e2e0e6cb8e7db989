"""The program that the grader starts: `python lockstep_exercise LAB FOLDER`."""

import sys
from pathlib import Path

if not __package__:  # started as a folder, not as a module
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    import lockstep_exercise  # noqa: F401

    # Other packages next to it may be those of another Python.
    del sys.path[0]

from lockstep_exercise import copies, rank  # noqa: E402


def main() -> int:
    """Serves the grader's requests; each copy runs one rank."""
    if len(sys.argv) != 3:
        print("error: only the grader starts this program: lockstep grade LAB --python", file=sys.stderr)
        return 2
    lab, folder = sys.argv[1], Path(sys.argv[2])
    tasks = rank.tasks_of(lab)
    if copies.serve(lambda variables: rank.prepare(tasks, variables)):
        rank.main(tasks, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
