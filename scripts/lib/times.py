#!/usr/bin/env python3
"""Prints where the time of a test run went: the ten slowest tests, and the seconds of each crate's tests.

    scripts/lib/times.py JUNIT...

JUNIT is a report of cargo-nextest. Seconds are those from start to end; tests run beside each other, so that they add up to more than the
run took.
"""

import collections
import sys
import xml.etree.ElementTree

SLOWEST = 10
# Crates with less are summed up in one line.
SHORT = 5.0


def tests(report):
    """(seconds, binary as nextest calls it, name) of each test of a report."""
    for suite in xml.etree.ElementTree.parse(report).getroot():
        for case in suite.iter("testcase"):
            yield float(case.get("time", 0)), suite.get("name"), case.get("name")


def main(reports):
    found = sorted((test for report in reports for test in tests(report)), reverse=True)
    print(f"the {SLOWEST} slowest of {len(found)} tests:")
    for seconds, binary, name in found[:SLOWEST]:
        print(f"{seconds:7.1f} s  {binary} {name}")
    by_crate = collections.defaultdict(list)
    for seconds, binary, _ in found:
        by_crate[binary.split("::")[0]].append(seconds)
    print("seconds of tests by crate:")
    for crate, seconds in sorted(by_crate.items(), key=lambda item: -sum(item[1])):
        if sum(seconds) >= SHORT:
            print(f"{sum(seconds):7.1f} s  {crate} ({len(seconds)} tests)")
    short = [seconds for seconds in by_crate.values() if sum(seconds) < SHORT]
    if short:
        print(f"{sum(map(sum, short)):7.1f} s  {len(short)} other crates ({sum(map(len, short))} tests)")


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] == "--help":
        sys.exit(print(__doc__.strip()) or (0 if sys.argv[1:] == ["--help"] else 2))
    main(sys.argv[1:])
