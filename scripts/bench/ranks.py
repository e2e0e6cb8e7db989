#!/usr/bin/env python3
"""Starts a job of many ranks that each hold a client of the store, under a soft limit of 1,024 open files.

    cargo build -p lockstep-harness -p tcpstore --example rank --bin lockstep
    python scripts/bench/ranks.py [RANKS [SECONDS]]

Prints how long it took until all ranks were connected and until the job had ended, the agent's largest resident memory, its
open files and connections while all ranks were there. Needs Linux, and no Python package.
"""

import os
import resource
import subprocess
import sys
import time

FILES = 1024


def main() -> None:
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    seconds = sys.argv[2] if len(sys.argv) > 2 else "3"
    target = os.environ.get("CARGO_TARGET_DIR", "target") + "/debug"
    command = [f"{target}/lockstep", "run", "--standalone", f"--nproc-per-node={ranks}", "--prefix=never"]
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES, hard), hard))
    begun = time.monotonic()
    job = subprocess.Popen([*command, f"{target}/examples/rank", seconds], stdout=subprocess.PIPE, text=True)
    line = job.stdout.readline().strip()
    here = time.monotonic() - begun
    if not line:
        sys.exit(f"not all ranks came: the job ended with {job.wait()}")
    links = [link(job.pid, number) for number in os.listdir(f"/proc/{job.pid}/fd")]
    sockets = sum(name.startswith("socket:") for name in links)
    peak = status(job.pid, "VmHWM")
    job.stdout.read()
    code = job.wait()
    print(f"{line}; soft limit of open files {min(FILES, hard)}, hard {hard}")
    print(f"all connected after {here:.1f} s, ended with {code} after {time.monotonic() - begun:.1f} s")
    print(f"agent: {peak / 1024:.1f} MiB at most, {len(links)} open files, {sockets} of them sockets")
    print(f"{os.cpu_count()} cores, load average of the last minute {os.getloadavg()[0]:.2f}")
    sys.exit(code)


def link(pid: int, number: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/{number}")
    except OSError:
        return ""


def status(pid: int, name: str) -> int:
    """A field of the process's status, in KiB."""
    with open(f"/proc/{pid}/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))


main()
