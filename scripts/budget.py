#!/usr/bin/env python3
"""Compares what a test run and the first command cost with the table in budget.toml.

    scripts/budget.py --measure
    scripts/budget.py [--yardstick SECONDS] STEP=SECONDS... -- WORDS...

Costs are processor time, in multiples of a yardstick: a fixed piece of work of this script, done on all cores at once as the steps do theirs,
so that a slow machine does not fail. --measure prints its seconds here. The second form compares the seconds of these steps of scripts/test.sh, and the number of packages that `cargo
build WORDS` compiles, which are the first command's. A step that the table lacks is an error, one that was not run is passed over.
Warns of what is more than 10 % above its row, and ends with 1 at 40 %.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = ROOT / "budget.toml"
WARNED, FAILED = 1.1, 1.4
# Repetitions of the yardstick; the median counts.
ROUNDS = 5


def yardstick():
    """Seconds of processor time for a fixed piece of work: strings, dictionaries and sorting."""
    begun = time.process_time()
    counts = {}
    for number in range(300_000):
        word = format(number * 2_654_435_761 % 100_003, "x")
        counts[word] = counts.get(word, 0) + len(word)
    total = sum(count for _, count in sorted(counts.items()))
    assert total == sum(counts.values())
    return time.process_time() - begun


def several(_core):
    return [yardstick() for _ in range(ROUNDS)]


def yardstick_here():
    """Its median, with every core at work."""
    cores = os.cpu_count() or 1
    with concurrent.futures.ProcessPoolExecutor(cores) as pool:
        return statistics.median(seconds for rounds in pool.map(several, range(cores)) for seconds in rounds)


def packages(words):
    """The number of packages that `cargo build WORDS` compiles. Listing them is an unstable option of the pinned toolchain."""
    command = ["cargo", "build", "--offline", "--unit-graph", "-Z", "unstable-options", *words]
    listed = subprocess.run(command, cwd=ROOT, env=os.environ | {"RUSTC_BOOTSTRAP": "1"}, capture_output=True, text=True)
    if listed.returncode:
        sys.exit(f"budget: error: {listed.stderr}")
    return len({unit["pkg_id"] for unit in json.loads(listed.stdout)["units"]})


def verdict(name, cost, row):
    """The line for a row, and whether it fails."""
    share = cost / row
    line = f"budget: {name:14} {cost:7.0f} of {row:5}"
    if share >= FAILED:
        return f"{line}   FAILED: {share - 1:.0%} over: make it cheaper, or raise the row in a commit of its own with the reason", True
    return line + (f"   warning: {share - 1:.0%} over" if share > WARNED else ""), False


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="print the yardstick's seconds here, and nothing else")
    parser.add_argument("--yardstick", type=float, help="its seconds at the beginning of the run")
    parser.add_argument("costs", nargs="*", metavar="STEP=SECONDS")
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    chosen, words = parser.parse_args(sys.argv[1:at]), sys.argv[at + 1 :]
    here = yardstick_here()
    if chosen.measure:
        return print(f"{here:.3f}")
    here = statistics.mean([here, chosen.yardstick or here])
    table = tomllib.loads(TABLE.read_text())
    costs = {name: float(seconds) / here for name, _, seconds in (cost.partition("=") for cost in chosen.costs)}
    if unknown := costs.keys() - table["processor"].keys():
        sys.exit(f"budget: error: {TABLE.name} has no row for {', '.join(sorted(unknown))} in [processor]")
    print(f"budget: processor time in multiples of {here:.3f} s, the yardstick's here")
    rows = [(name, costs[name], row) for name, row in table["processor"].items() if name in costs]
    if words:
        rows.append(("packages", packages(words), table["first-command"]["packages"]))
    verdicts = [verdict(*row) for row in rows]
    print("\n".join(line for line, _ in verdicts))
    return sys.exit(any(failed for _, failed in verdicts))


if __name__ == "__main__":
    main()
