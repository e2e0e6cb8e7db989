#!/usr/bin/env python3
"""Shows how far the results of tests are from their limits, over seeds and instruction sets.

    scripts/learning_margins.py [--seeds SEED,...] [--sets SET,...] [--more] [--write] [-- ARGS...]

Runs the tests of nextest's profile `learning` (.config/nextest.toml) with the processor's own instructions, with AVX2 and with SSE4
(scripts/with_instructions.sh; on AArch64 with its own and with NEON), each with the seeds (LOCKSTEP_TEST_SEED) 0, 1 and 2, and prints a table: what each test compares with
a limit, the limit, and the least and greatest result for each set. A result close to its limit means that the test will fail on
another machine: change what the test trains, not its limit. ARGS go to `cargo nextest run` (`-- -p lab-07-cifar-resnet`).
Each run is kept in target/learning-margins.json at once; --more adds to what is there, so that you can measure in pieces.
--write puts the table into scripts/learning_margins.md, and keeps the sections under headings there.
The tests give the reasons for the limits. Needs no package.
"""

import argparse
import collections
import json
import os
import pathlib
import platform
import re
import subprocess
import sys

sys.dont_write_bytecode = True
from lib import junit  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "scripts" / "learning_margins.md"
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
JUNIT, KEPT = TARGET / "nextest" / "learning" / "junit.xml", TARGET / "learning-margins.json"
SETS = ["own", "neon"] if platform.machine() == "aarch64" else ["own", "avx2", "sse4"]
WITH = str(ROOT / "scripts" / "with_instructions.sh")
MARGIN = re.compile(r"^margin: (.*): (\S+) ([<>]) (\S+)$", re.MULTILINE)


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0,1,2", help="seeds (default 0,1,2)")
    parser.add_argument("--sets", default=",".join(SETS), help=f"instruction sets (default {','.join(SETS)})")
    parser.add_argument("--more", action="store_true", help="add to the results of earlier runs")
    parser.add_argument("--write", action="store_true", help=f"write the table to {PAGE.relative_to(ROOT)}")
    parser.add_argument("args", nargs="*", help="for cargo nextest run")
    return parser.parse_args()


def run(chosen, seed, args):
    """Runs the tests once; yields (test, what, result, relation, limit) of each comparison, and names failed tests on stderr."""
    JUNIT.unlink(missing_ok=True)
    command = [WITH, chosen, "cargo", "nextest", "run", "--profile", "learning", "--no-fail-fast", *args]
    print(f"margins: {chosen}, seed {seed}: {' '.join(command[2:])}", file=sys.stderr, flush=True)
    ended = subprocess.run(command, cwd=ROOT, env={**os.environ, "LOCKSTEP_TEST_SEED": seed}, capture_output=True, text=True)
    if not JUNIT.is_file():
        sys.exit(f"margins: error: no test ran (exit code {ended.returncode}):\n{ended.stderr}")
    for test in junit.tests(JUNIT):
        if test.failure is not None:
            print(f"margins: FAILED with {chosen}, seed {seed}: {test}", file=sys.stderr)
        for what, result, relation, limit in MARGIN.findall(test.output):
            yield str(test), what, float(result), relation, float(limit)


def survey(asked):
    """Makes all runs; saves their results, and with --more earlier ones, after each."""
    runs = json.loads(KEPT.read_text()) if asked.more and KEPT.is_file() else []
    for chosen in asked.sets.split(","):
        for seed in asked.seeds.split(","):
            made = [[chosen, seed, *margin] for margin in run(chosen, seed, asked.args)]
            again = {(chosen, seed, margin[2]) for margin in made}
            runs = [margin for margin in runs if tuple(margin[:3]) not in again] + made
            KEPT.write_text(json.dumps(runs))
    return runs


def by_comparison(runs):
    """For each (test, what, relation, limit) the results by set."""
    results = collections.defaultdict(lambda: collections.defaultdict(list))
    for chosen, _, test, what, result, relation, limit in runs:
        results[test, what, relation, limit][chosen].append(result)
    return results


def distance(relation, limit, results):
    """How far the worst result is from the limit, as a factor: 1 is at the limit, less is beyond it."""
    least, most = min(results), max(results)
    if relation == "<":
        return limit / most if most > 0 else float("inf")
    return least / limit if limit > 0 else float("inf")


def number(value):
    return f"{value:.3g}"


def spread(results):
    if not results:
        return ""
    least, most = number(min(results)), number(max(results))
    return least if least == most else f"{least} … {most}"


def table(results, sets):
    yield f"| test | what | limit | {' | '.join(sets)} | worst, as a factor |"
    yield f"|---|---|---|{'---|' * len(sets)}---|"
    for (test, what, relation, limit), by_set in sorted(results.items()):
        worst = number(distance(relation, limit, [result for results in by_set.values() for result in results]))
        columns = " | ".join(spread(by_set[chosen]) for chosen in sets)
        yield f"| `{test}` | {what} | {relation} {number(limit)} | {columns} | {worst} |"


def processor():
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith(("model name", "CPU part"))]
    widest = next((flag for flag in ("avx512f", "avx2", "sse4_2", "sve", "asimd") if any(flag in line.split() for line in lines)), "none of ours")
    return f"{names[0] if names else platform.machine()}, widest instructions {widest}"


def main():
    asked = options()
    runs = survey(asked)
    sets = [chosen for chosen in SETS if any(run[0] == chosen for run in runs)]
    rows = "\n".join(table(by_comparison(runs), sets))
    print(rows)
    if asked.write:
        _, heading, by_hand = (PAGE.read_text() if PAGE.is_file() else "").partition("\n## ")
        seeds = ", ".join(f"{chosen} {len({run[1] for run in runs if run[0] == chosen})}" for chosen in sets)
        PAGE.write_text(
            "# How far results are from limits\n\n"
            "Written by `scripts/learning_margins.py --write`, which says what this is.\n"
            f"Processor: {processor()}. Seeds at most: {seeds}.\n\n{rows}\n"
            f"{heading}{by_hand}"
        )


if __name__ == "__main__":
    main()
