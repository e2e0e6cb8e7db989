#!/usr/bin/env python3
"""Shows how long learners wait: from saving an answer to its verdict, for each task.

    scripts/edit_to_verdict.py [--rounds N] [--limit SECONDS] [LAB...]

Puts the course's answers into the exercises of these labs (by number; default: all). Then, N times for each task (3): adds a line at
the top of the answer, which makes the compiler look at all of it again, and times `lockstep grade LAB --task TASK`. One more time it
times the build alone. Prints a table of medians in seconds, and the tasks above the limit (5); then the exit code is 1. The exercises
and the learner's progress are put back at the end, also after an interruption. Run it on a quiet machine: the first line has the load.
Needs a finished set-up, and no package.
"""

import argparse
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
CARGO = os.environ.get("CARGO", "cargo")
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).absolute()
PROGRESS = ROOT / "progress.toml"
# A verdict that takes longer, in seconds, is a hang: the grader's own deadlines are shorter.
DEADLINE = 600


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="edits of each answer (default 3)")
    parser.add_argument("--limit", type=float, default=5, help="seconds that are enough (default 5)")
    parser.add_argument("labs", nargs="*", metavar="LAB", help="labs by number (default: all)")
    return parser.parse_args()


def main(args):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # through all that is to be put back
    known = {path.parent.name[:2]: path.parent for path in sorted(ROOT.glob("labs/*/lab.toml"))}
    unknown = [lab for lab in args.labs if lab not in known]
    if unknown:
        sys.exit(f"edit-to-verdict: no lab {', '.join(unknown)}: there are {', '.join(known)}")
    if args.rounds < 1:
        sys.exit("edit-to-verdict: --rounds is 1 or more")
    run([CARGO, "build", "--quiet"])
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start")
    print(f"{args.rounds} edits of each answer, median (least to greatest)\n")
    print("| lab | task | edit to verdict, s | of it the build, s |\n|---|---|---|---|", flush=True)
    slow, failed = [], []
    for number in args.labs or known:
        with answered(known[number]) as tasks:
            for task in tasks:
                times, build, verdict = measure(number, task, args.rounds)
                median = statistics.median(times)
                print(f"| {number} | `{task.stem}` | {median:.1f} ({min(times):.1f} to {max(times):.1f}) | {build:.1f} |", flush=True)
                if verdict:
                    failed.append(f"{number} {task.stem}: {verdict}")
                if median > args.limit:
                    slow.append(f"{number} {task.stem}")
    print(f"\nload {os.getloadavg()[0]:.1f} at the end; above {args.limit:g} s: {', '.join(slow) or 'none'}")
    for verdict in failed:
        print(f"edit-to-verdict: the course's answer did not pass: {verdict}", file=sys.stderr)
    return 1 if slow or failed else 0


class answered:
    """A lab's exercise with the course's answers in it, and the tasks' files in the course's order. The end puts back what was there
    before, the learner's progress included."""

    def __init__(self, lab):
        self.exercise, self.tasks = lab / "exercise" / "src", lab / "tasks"
        self.names = [task["name"] for task in tomllib.loads((lab / "lab.toml").read_text())["task"]]
        self.package = f"ex-{lab.name[:2]}"

    def __enter__(self):
        self.kept = pathlib.Path(tempfile.mkdtemp(prefix="edit-to-verdict-"))
        shutil.copytree(self.exercise, self.kept / "src")
        self.progress = PROGRESS.read_bytes() if PROGRESS.exists() else None
        try:
            for name in self.names:
                write(self.exercise / f"{name}.rs", (self.tasks / name / "answer.rs").read_text())
            run([CARGO, "build", "--quiet", "--package", self.package])
        except BaseException:
            self.__exit__()
            raise
        return [self.exercise / f"{name}.rs" for name in self.names]

    def __exit__(self, *_):
        for path in (self.kept / "src").iterdir():
            write(self.exercise / path.name, path.read_text())
        if self.progress is None:
            PROGRESS.unlink(missing_ok=True)
        else:
            PROGRESS.write_bytes(self.progress)
        shutil.rmtree(self.kept)


def measure(number, task, rounds):
    """The seconds of each edit to its verdict, those of the build after one more, and the last words of a verdict that is not "right"."""
    text, times, verdict = task.read_text(), [], None
    for round in range(1, rounds + 1):
        edit(task, text, round)
        begun = time.monotonic()
        ended = run([TARGET / "debug" / "lockstep", "grade", number, "--task", task.stem], check=False, deadline=DEADLINE)
        times.append(time.monotonic() - begun)
        if ended.returncode:
            verdict = ended.stdout.strip()
    edit(task, text, rounds + 1)
    begun = time.monotonic()
    run([CARGO, "build", "--quiet", "--package", f"ex-{number}"])
    return times, time.monotonic() - begun, verdict


def edit(task, text, round):
    """Moves every line of the answer: what is compiled holds the lines' numbers."""
    write(task, "//! Edited.\n" * round + text)


def write(path, text):
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def run(command, check=True, deadline=None):
    words = " ".join(map(str, command))
    try:
        ended = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=deadline)
    except subprocess.TimeoutExpired:
        sys.exit(f"edit-to-verdict: {words} did not end within {deadline} s")
    if check and ended.returncode:
        sys.exit(f"{ended.stdout}edit-to-verdict: {words} ended with exit code {ended.returncode}")
    return ended


if __name__ == "__main__":
    sys.exit(main(options()))
