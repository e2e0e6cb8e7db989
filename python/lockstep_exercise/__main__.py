"""The program that the grader starts: `python lockstep_exercise LAB FOLDER`."""

import importlib.util
import sys
from pathlib import Path

if not __package__:  # started as a folder, not as a module
    # Without a search in the folder around it: packages there may be those of another Python, and a confined process may not read it.
    del sys.path[0]
    here = Path(__file__).resolve().parent
    spec = importlib.util.spec_from_file_location("lockstep_exercise", here / "__init__.py", submodule_search_locations=[str(here)])
    if spec is None or spec.loader is None:
        sys.exit(f"error: {here} is no package")
    package = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = package
    spec.loader.exec_module(package)

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
