"""The results of tests in a JUnit report, as cargo-nextest writes it into target/nextest/PROFILE/junit.xml."""

import collections
import xml.etree.ElementTree


class Test:
    """One test: its binary (nextest's id), name, seconds, standard output, and all that is known of its failure, or None."""

    def __init__(self, suite, case):
        self.binary, self.name = suite.get("name"), case.get("name")
        self.seconds = float(case.get("time", 0))
        self.output = case.findtext("system-out") or ""
        failure = case.find("failure")
        if failure is None:
            self.failure = None
        else:
            parts = [failure.get("message"), failure.text, self.output, case.findtext("system-err")]
            self.failure = "\n".join(filter(None, parts))

    @property
    def crate(self):
        return self.binary.split("::")[0]

    def __str__(self):
        return f"{self.binary} {self.name}"


def tests(path):
    """All tests of a report."""
    root = xml.etree.ElementTree.parse(path).getroot()
    return [Test(suite, case) for suite in root for case in suite.iter("testcase")]


def by_crate(tests):
    """(crate, number of tests, seconds), the longest first."""
    found = collections.defaultdict(list)
    for test in tests:
        found[test.crate].append(test.seconds)
    rows = [(crate, len(seconds), sum(seconds)) for crate, seconds in found.items()]
    return sorted(rows, key=lambda row: -row[2])
