#!/usr/bin/env python3
"""Prints the summary of ./run test: failures with the end of their output, the slowest tests, and the counts.

Usage: test_summary.py SUITE...  A SUITE is NAME=FOLDER=BUILD_SECONDS=RUN_SECONDS, with ctest's FOLDER/junit.xml and the
FOLDER/test-results that run_test_program.py wrote; RUN_SECONDS is "earlier" for results of an earlier run with the
same programs and files, whose tests are counted separately. Or NAME=VERDICT=SECONDS=REASON, with the verdict passed,
failed or skipped, for a step without tests. Counts each TEST of a GoogleTest program, and every other test once. Exits
with 1 if a test failed or none ran.
"""

import json
import pathlib
import sys
import xml.etree.ElementTree

LINES = 40
WIDTH = 240
SLOWEST = 10


class Suite:
    def __init__(self, text):
        self.name, place, build, rest = text.split("=", 3)
        self.build, self.run = float(build), 0.0
        self.counts = {"pass": 0, "fail": 0, "skip": 0}
        self.earlier = 0  # passed in an earlier run, not run now
        self.programs = []  # (seconds, name)
        self.failures = []  # (name of the program, output)
        self.failed = []  # names of tests
        self.skips = []
        if place in ("passed", "failed", "skipped"):
            if place == "passed":
                self.counts["pass"] = 1
            elif place == "failed":
                self.fail(self.name)
                self.failures.append((self.name, "see above"))
            else:
                self.counts["skip"] = 1
                self.skips.append((self.name, rest))
        elif rest == "earlier":
            self.read(pathlib.Path(place))
            self.earlier, self.counts["pass"], self.programs = self.counts["pass"], 0, []
        else:
            self.run = float(rest)
            self.read(pathlib.Path(place))

    def fail(self, name):
        self.counts["fail"] += 1
        self.failed.append(name)

    def read(self, folder):
        junit = folder / "junit.xml"
        cases = list(xml.etree.ElementTree.parse(junit).getroot().iter("testcase")) if junit.exists() else []
        for case in cases:
            self.programs.append((float(case.get("time", 0)), case.get("name")))
            self.count(case, folder / "test-results" / f"{case.get('name')}.json")
        if not cases:
            self.fail(self.name)
            self.failures.append((self.name, "no test ran"))

    def count(self, case, results):
        """Counts a program as 0 tests if the filter left none, and as one if it left no results."""
        skipped = [each.get("message", "") for each in case.findall("skipped")]
        status = "pass" if case.get("status") == "run" else "fail"  # one whose program is missing is "notrun"
        if skipped and skipped[0].startswith("SKIP_"):
            status = "skip"
        output = "".join(part.text or "" for part in case.iter("system-out")).rstrip()
        if results.exists():
            tests = json.loads(results.read_text())["tests"]
            for test in tests:
                if test["status"] == "fail":
                    self.fail(f"{case.get('name')}.{test['name']}")
                    continue
                self.counts[test["status"]] += 1
                if test["status"] == "skip":
                    reason = (test["detail"] or "no reason given").splitlines()[-1]
                    self.skips.append((f"{case.get('name')}.{test['name']}", reason))
            if status == "fail" and all(test["status"] != "fail" for test in tests):
                self.fail(case.get("name"))  # the runner itself
        elif status == "fail":
            self.fail(case.get("name"))
        else:
            self.counts[status] += 1
            if status == "skip":
                self.skips.append((case.get("name"), (output.splitlines() or ["no reason given"])[-1]))
        if status == "fail":
            self.failures.append((case.get("name"), output))


def print_failures(suites):
    for suite in suites:
        for name, output in suite.failures:
            print(f"--- {suite.name}: {name} failed; the end of its output:")
            for line in output.splitlines()[-LINES:]:
                print("    " + line[:WIDTH])


def table(suites):
    lines = [f"{'suite':<16} {'build s':>8} {'run s':>8} {'passed':>8} {'failed':>7} {'skipped':>8}"]
    for each in suites:
        run = "earlier" if each.earlier else f"{each.run:.0f}"
        lines.append(f"{each.name:<16} {each.build:>8.0f} {run:>8} {each.counts['pass']:>8} "
                     f"{each.counts['fail']:>7} {each.counts['skip']:>8}")
    slowest = sorted(((seconds, each.name, name) for each in suites for seconds, name in each.programs), reverse=True)
    lines.append(f"the {SLOWEST} slowest:")
    lines += [f"{seconds:>8.1f} s  {suite}: {name}" for seconds, suite, name in slowest[:SLOWEST]]
    return "\n".join(lines)


def main():
    suites = [Suite(text) for text in sys.argv[1:]]
    print_failures(suites)
    for suite in suites:
        for name, reason in suite.skips:
            print(f"skipped, {suite.name}: {name}: {reason[:WIDTH]}")
    print(table(suites))
    earlier = [suite for suite in suites if suite.earlier]
    if earlier:
        print(f"{sum(suite.earlier for suite in earlier)} passed earlier with the same programs and files and were not run again: "
              f"{', '.join(suite.name for suite in earlier)} (./run test --again runs them)")
    passed, failed, skipped = (sum(suite.counts[key] for suite in suites) for key in ("pass", "fail", "skip"))
    if passed + failed == 0:
        print("nothing ran")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
