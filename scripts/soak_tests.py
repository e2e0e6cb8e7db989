#!/usr/bin/env python3
"""Runs the tests again and again, and lists every test that failed in any run, with its output.

    scripts/soak_tests.py [--runs N] [--load] [-- ARGS...]

N runs (default 3) of the tests as scripts/test.sh runs them, with ARGS for `cargo nextest run`, such as `-p c10d` or a test's name. With
--load, two loops that use a core each and a process that writes to the disk of `target` run next to them, as on a busy machine. Each
run's report is kept in target/soak, a failed test's output in target/soak/RUN/TEST.txt. Ends with 1 if any test failed.
Build first (cargo test --no-run), or the first run includes it. Needs cargo-nextest.
"""

import argparse
import collections
import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True
from lib import junit  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
REPORT, KEPT = TARGET / "nextest" / "default" / "junit.xml", TARGET / "soak"
# As scripts/test.sh without arguments: all but the unsolved exercises.
ALL = ["--workspace", "--exclude", "ex-*"]
BUSY = "while :; do :; done"
# 64 MiB over and over, each time down to the disk.
WRITER = 'while :; do dd if=/dev/zero of="$0" bs=1M count=64 conv=fsync 2>/dev/null; done'


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3, help="how often (default 3)")
    parser.add_argument("--load", action="store_true", help="next to two busy loops and a process that writes to disk")
    parser.add_argument("args", nargs="*", help="for cargo nextest run")
    chosen = parser.parse_args()
    if chosen.runs < 1:
        parser.error(f"--runs {chosen.runs}: at least one run is needed")
    return chosen


@contextlib.contextmanager
def load(wanted):
    """The busy loops and the writer, each in a group of its own, until the end."""
    scripts = [BUSY, BUSY, WRITER] if wanted else []
    file = str(KEPT / "written")
    loops = [subprocess.Popen(["sh", "-c", script, file], start_new_session=True) for script in scripts]
    try:
        yield
    finally:
        for loop in loops:
            os.killpg(loop.pid, signal.SIGKILL)
            loop.wait()
        pathlib.Path(file).unlink(missing_ok=True)


def run(number, args):
    """Runs the tests once and returns them."""
    REPORT.unlink(missing_ok=True)
    with open(KEPT / f"{number}.txt", "w") as output:
        # Without any argument it would run more than the tests.
        command = [ROOT / "scripts" / "test.sh", "--profile", "default", *(args or ALL)]
        ended = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    if not REPORT.is_file():
        sys.exit(f"soak: error: no test ran (exit code {ended.returncode}): see {output.name}")
    shutil.copy(REPORT, KEPT / f"{number}.xml")
    return junit.tests(REPORT)


def keep(number, test):
    """Writes what a failed test printed."""
    folder = KEPT / str(number)
    folder.mkdir(exist_ok=True)
    file = folder / (re.sub(r"\W+", "-", str(test)) + ".txt")
    file.write_text(test.failure)
    return file


def main():
    chosen = options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # through `load`
    shutil.rmtree(KEPT, ignore_errors=True)
    KEPT.mkdir(parents=True)
    failed = collections.defaultdict(list)
    with load(chosen.load):
        for number in range(1, chosen.runs + 1):
            begun = time.monotonic()
            tests = run(number, chosen.args)
            failures = [test for test in tests if test.failure is not None]
            seconds = time.monotonic() - begun
            print(f"soak: run {number} of {chosen.runs}: {len(tests)} tests in {seconds:.0f} s, {len(failures)} failed", flush=True)
            for test in failures:
                failed[str(test)].append(keep(number, test))
    for name, files in sorted(failed.items()):
        print(f"soak: failed in {len(files)} of {chosen.runs} runs: {name}")
        print(*(f"    {file}" for file in files), sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
