#!/usr/bin/env python3
"""Runs the tests of a build folder several times with many programs at once, to find tests that fail by chance.

Usage: repeat_tests.py [--times 20] [--programs 8] [--filter REGEX] FOLDER

FOLDER: build, where `./run test` has built the tests of the first tier; with a filter, as in `./run test FILTER`, all
tests that match. Prints the end of the output of each failure, a line per run, and at the end how often each test
failed. Exits with 1 if a test failed or none ran. Another ./run in this checkout waits meanwhile.
"""

import argparse
import collections
import fcntl
import os
import pathlib
import re
import subprocess
import sys
import time

from select_tests import expression, select
from test_summary import Suite, print_failures

SOURCE = pathlib.Path(__file__).resolve().parent.parent.parent


def environment(folder, wanted):
    """Returns the variables that ./run sets."""
    more = {"OMP_WAIT_POLICY": "passive", "CONCORD_CACHE": str(folder / "cache")}
    python = SOURCE / ".venv/bin/python"
    if "CONCORD_PYTHON" not in os.environ and python.exists():
        more["CONCORD_PYTHON"] = str(python)
    if wanted:
        more["CONCORD_TEST_FILTER"] = wanted
    return {**os.environ, **more}


def command(folder, programs, wanted):
    words = ["ctest", "--test-dir", folder, "-j", str(programs), "--output-junit", folder / "junit.xml"]
    if not wanted:
        return [*words, "-LE", "^(exhaustive|sanitized|slow)$"]
    chosen = select((folder / "tests.txt").read_text().splitlines(), re.compile(wanted))
    return [*words, "-R", expression(chosen)]


def run_once(number, words, variables, folder):
    for old in [folder / "junit.xml", *(folder / "test-results").glob("*.json")]:
        old.unlink(missing_ok=True)
    begin = time.monotonic()
    subprocess.run(words, env=variables, stdout=subprocess.DEVNULL, check=False)
    return Suite(f"run {number}={folder}=0={time.monotonic() - begin}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--programs", type=int, default=8)
    parser.add_argument("--filter", default="")
    given = parser.parse_args()
    folder = given.folder.resolve()
    words, variables = command(folder, given.programs, given.filter), environment(folder, given.filter)
    failed, skipped = collections.Counter(), {}
    with open(folder / ".run-lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for number in range(1, given.times + 1):
            suite = run_once(number, words, variables, folder)
            print_failures([suite])
            failed.update(suite.failed)
            skipped.update(suite.skips)
            counts = suite.counts
            print(f"run {number} of {given.times}: {counts['pass']} passed, {counts['fail']} failed, {counts['skip']} skipped in "
                  f"{suite.run:.0f} s", flush=True)
            if not suite.programs:
                break
    for name, reason in sorted(skipped.items()):
        print(f"skipped: {name}: {reason}")
    for name, times in failed.most_common():
        print(f"failed in {times} of {given.times} runs: {name}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
