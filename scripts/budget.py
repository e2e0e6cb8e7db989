#!/usr/bin/env python3
"""Compares what a test run and the first command cost, and how large the tree is, with the tables in budget.toml.

    scripts/budget.py --measure
    scripts/budget.py --tree
    scripts/budget.py [--yardstick SECONDS] STEP=SECONDS... -- WORDS...

Costs are processor time, in multiples of a yardstick: a fixed piece of work of this script, done on all cores at once as the steps do theirs,
so that a slow machine does not fail. --measure prints its seconds here. The third form compares the seconds of these steps of scripts/test.sh, and
the number of packages that `cargo build WORDS` compiles, which are the first command's. A step that the table lacks is an error, one that was
not run is passed over. Warns of what is more than 10 % above its row, and ends with 1 at 40 %.

--tree compares what git tracks: the lines of each area, the book's words, files, folders and the packages of Cargo.lock. It ends with 1 if
something is more than 2 % above its row.
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
# The same for the tree, which is counted, not measured.
GROWN = 1.02
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


def tracked():
    """The files that git tracks, and those that it would, by their names from the root."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True)
    if listed.returncode:
        sys.exit(f"budget: error: {listed.stderr.decode(errors='replace')}")
    return sorted(name for name in listed.stdout.decode().split("\0") if (ROOT / name).is_file() and not (ROOT / name).is_symlink())


def text(name):
    """The file's text; none if it has other bytes."""
    data = (ROOT / name).read_bytes()
    return "" if b"\0" in data else data.decode(errors="ignore")


def area_of(name, areas):
    """The area with the longest path that has this file. What none has is the root's."""
    folders = [(len(folder), area) for area, row in areas.items() for folder in row["of"] if name == folder or name.startswith(f"{folder}/")]
    return max(folders, default=(0, "root"))[1]


def tree(table):
    """The rows of the tree: name, count, row."""
    names, areas = tracked(), table["lines"]
    lines = dict.fromkeys(areas, 0)
    for name in names:
        if name != "Cargo.lock":
            lines[area_of(name, areas)] += text(name).count("\n")
    counts = {
        "book's words": sum(len(text(name).split()) for name in names if name.startswith("book/src/") and name.endswith(".md")),
        "files": len(names),
        "folders": len({pathlib.PurePath(name).parent for name in names}),
        "packages in Cargo.lock": text("Cargo.lock").count("[[package]]"),
    }
    return [*((area, lines[area], row["lines"]) for area, row in areas.items()), *((what, counts[what], row) for what, row in table["tree"].items())]


def compare_tree(table):
    """Prints the rows that have grown, or the sum, and returns true if one has grown too much."""
    rows = tree(table)
    grown = [(name, count, row) for name, count, row in rows if count > GROWN * row]
    for name, count, row in grown:
        print(
            f"budget: {name}: {count}, {count / row - 1:.1%} above {row} in {TABLE.name}: shorten it, or raise the row in a commit of its own that "
            "names what left elsewhere, or who asked for the feature"
        )
    if not grown:
        print(f"budget: {sum(count for name, count, _ in rows if name in table['lines'])} lines, no row more than {GROWN - 1:.0%} above {TABLE.name}")
    return bool(grown)


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
    parser.add_argument("--tree", action="store_true", help="compare what git tracks, and nothing else")
    parser.add_argument("--yardstick", type=float, help="its seconds at the beginning of the run")
    parser.add_argument("costs", nargs="*", metavar="STEP=SECONDS")
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    chosen, words = parser.parse_args(sys.argv[1:at]), sys.argv[at + 1 :]
    table = tomllib.loads(TABLE.read_text())
    if chosen.tree:
        sys.exit(compare_tree(table))
    here = yardstick_here()
    if chosen.measure:
        return print(f"{here:.3f}")
    here = statistics.mean([here, chosen.yardstick or here])
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
