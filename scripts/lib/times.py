#!/usr/bin/env python3
"""Prints where the time of a test run went: the ten slowest tests, and the seconds of each crate's tests.

    scripts/lib/times.py JUNIT...

Seconds are those from start to end; tests run beside each other, so that they add up to more than the run took.
"""

import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).parent))
import junit  # noqa: E402

SLOWEST = 10
# Crates with less are summed up in one line.
SHORT = 5.0


def main(reports):
    tests = [test for report in reports for test in junit.tests(report)]
    print(f"the {SLOWEST} slowest of {len(tests)} tests:")
    for test in sorted(tests, key=lambda test: -test.seconds)[:SLOWEST]:
        print(f"{test.seconds:7.1f} s  {test}")
    crates = junit.by_crate(tests)
    print("seconds of tests by crate:")
    for crate, count, seconds in (row for row in crates if row[2] >= SHORT):
        print(f"{seconds:7.1f} s  {crate} ({count} tests)")
    short = [row for row in crates if row[2] < SHORT]
    if short:
        print(f"{sum(row[2] for row in short):7.1f} s  {len(short)} other crates ({sum(row[1] for row in short)} tests)")


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] == "--help":
        sys.exit(print(__doc__.strip()) or (0 if sys.argv[1:] == ["--help"] else 2))
    main(sys.argv[1:])
