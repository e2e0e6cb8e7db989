#!/usr/bin/env python3
"""Prints what the reports of a test run say: the ten slowest tests and the seconds of each crate's tests, or the tests that failed.

    scripts/lib/test_reports.py times|failed JUNIT...

JUNIT is a report of cargo-nextest. Seconds are those from start to end; tests run beside each other, so that they add up to more than the
run took. Of a failed test, the end of its output is printed without the backtrace.
"""

import collections
import sys
import xml.etree.ElementTree

SLOWEST = 10
# Crates with less are summed up in one line.
SHORT = 5.0
# Lines that are printed of a failed test's stdout, and of its stderr.
LINES = 30


def cases(reports):
    """(binary as nextest calls it, element) of each test of these reports."""
    for report in reports:
        for suite in xml.etree.ElementTree.parse(report).getroot():
            for case in suite.iter("testcase"):
                yield suite.get("name"), case


def failed(reports):
    for binary, case in cases(reports):
        if case.find("failure") is not None or case.find("error") is not None:
            print(f"failed: {binary} {case.get('name')}")
            for stream in ("system-out", "system-err"):
                text = (case.findtext(stream) or "").partition("stack backtrace:")[0].rstrip()
                for line in [line for line in text.splitlines() if line][-LINES:]:
                    print(f"    {line}")


def times(reports):
    found = sorted(((float(case.get("time", 0)), binary, case.get("name")) for binary, case in cases(reports)), reverse=True)
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
    what = {"times": times, "failed": failed}.get(sys.argv[1] if len(sys.argv) > 2 else "")
    if not what:
        sys.exit(print(__doc__.strip()) or (0 if sys.argv[1:] == ["--help"] else 2))
    what(sys.argv[2:])
