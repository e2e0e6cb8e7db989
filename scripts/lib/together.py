#!/usr/bin/env python3
"""Runs the tests of some binaries one after the other in one process for each binary, as `cargo test -- --test-threads=1` does, but without a
build: with fewer packages than the test run has, cargo would compile some of their libraries once more.

    cargo nextest list ... --list-type binaries-only --message-format json | scripts/lib/together.py BINARY... [-- ARGS]

BINARY is nextest's id; ARGS go to each binary. Ends with 1 if a test failed.
"""

import itertools
import json
import pathlib
import subprocess
import sys

if len(sys.argv) < 2 or sys.argv[1] == "--help":
    sys.exit(print(__doc__.strip()) or (0 if sys.argv[1:] == ["--help"] else 2))
names = list(itertools.takewhile(lambda argument: argument != "--", sys.argv[1:]))
binaries, failed = json.load(sys.stdin)["rust-binaries"], []
for name in names:
    # path+file:///FOLDER#NAME@VERSION
    folder = pathlib.Path(binaries[name]["package-id"].partition("file://")[2].partition("#")[0])
    command = [binaries[name]["binary-path"], "--test-threads=1", "--show-output", *sys.argv[len(names) + 2 :]]
    print(f"together: {name}", flush=True)
    if subprocess.run(command, cwd=folder).returncode:
        failed.append(name)
sys.exit(f"together: error: tests failed in {', '.join(failed)}" if failed else 0)
