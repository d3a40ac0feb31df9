#!/usr/bin/env python3
"""Runs a GoogleTest program as one test of ctest and records the result of each of its tests.

Usage: run_test_program.py --results FILE [--isolated] [--timeout S] NAME PROGRAM [ARGUMENT...]

All tests of PROGRAM run in one process, which loads its libraries once; with --isolated each has a separate process.
If the process dies or hangs, the running test has failed, and the others run in a new process, so that one crash hides
nothing. A program without tests fails. Writes {"program", "tests": [{"name", "status", "seconds", "detail"}]} to FILE,
and prints a line for each test that failed or was skipped, with its output. Environment: CONCORD_TEST_FILTER, a regular
expression, runs only tests whose NAME.Suite.Test it matches; GTEST_TOTAL_SHARDS and GTEST_SHARD_INDEX as in GoogleTest.
"""

import argparse
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree

RUN = "[ RUN      ] "
ENDS = {"[       OK ] ": "pass", "[  FAILED  ] ": "fail", "[  SKIPPED ] ": "skip"}
LINES = 60  # lines of output that are printed for a failed test


def parse_list(text):
    """Returns the tests of --gtest_list_tests: suites begin a line, their tests are indented."""
    tests, suite = [], None
    for line in text.splitlines():
        name = line.split("#")[0].rstrip()
        if line.startswith("  ") and suite:
            tests.append(suite + name.strip())
        elif name.endswith(".") and " " not in name:
            suite = name
    return tests


def parse_report(path):
    """Returns the tests of a report by --gtest_output=xml."""
    tests = []
    for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase"):
        failures = [each.get("message", "") for each in case.findall("failure")]
        skips = [each.get("message", "") for each in case.findall("skipped")]
        skipped = case.get("result") == "skipped" or bool(skips)
        if case.get("status") == "notrun" and not skipped:
            continue  # left out by the filter
        tests.append({
            "name": f"{case.get('classname')}.{case.get('name')}",
            "status": "fail" if failures else "skip" if skipped else "pass",
            "seconds": float(case.get("time", 0)),
            "detail": "\n".join(failures or skips).strip(),
        })
    return tests


def parse_output(text):
    """Returns the progress of a process that left no report: the finished tests, and the running one or None."""
    tests, running = [], None
    for line in text.splitlines():
        if line.startswith(RUN):
            running = line[len(RUN):].strip()
            continue
        for mark, status in ENDS.items():
            if running and line.startswith(mark) and line[len(mark):].split(" (")[0].split(",")[0].strip() == running:
                tests.append({"name": running, "status": status, "seconds": 0.0, "detail": ""})
                running = None
    return tests, running


def section(text, name):
    """Returns the end of the output of the test |name|."""
    begin = text.rfind(RUN + name + "\n")
    if begin < 0:  # not a test: the end of the process
        return "\n".join(text.splitlines()[-LINES:])
    lines = text[begin:].splitlines()
    for number, line in enumerate(lines[1:], 1):
        if line.startswith(RUN):
            lines = lines[:number]
            break
    return "\n".join(lines[-LINES:])


class Program:
    def __init__(self, arguments):
        self.command = [arguments.program, *arguments.arguments]
        self.deadline = time.monotonic() + arguments.timeout
        self.timeout = arguments.timeout

    def list(self):
        found = subprocess.run([*self.command, "--gtest_list_tests"], capture_output=True, text=True, errors="replace",
                               timeout=self.timeout)
        if found.returncode != 0:
            sys.exit(f"{self.command[0]} --gtest_list_tests ended with code {found.returncode}:\n{found.stderr}")
        return parse_list(found.stdout)

    def run(self, names=None):
        """Runs |names|, or all tests, in one process; returns (tests, output, the test that crashed or None)."""
        command = list(self.command)
        environment = dict(os.environ)
        if names is not None:
            environment["GTEST_FILTER"] = ":".join(names)
            for key in ("GTEST_TOTAL_SHARDS", "GTEST_SHARD_INDEX", "GTEST_SHARD_STATUS_FILE"):
                environment.pop(key, None)  # the names are this shard's already
            command = [each for each in command if not each.startswith("--gtest_filter")]
        with tempfile.TemporaryDirectory() as folder, open(f"{folder}/output", "w+b") as file:
            report = pathlib.Path(folder, "report.xml")
            process = subprocess.Popen([*command, f"--gtest_output=xml:{report}"], stdout=file, stderr=subprocess.STDOUT,
                                       stdin=subprocess.DEVNULL, env=environment, start_new_session=True)
            reason = self.wait(process)
            file.seek(0)
            output = file.read().decode(errors="replace")
            try:
                tests = parse_report(report) if report.exists() and not reason.startswith("hangs") else None
            except xml.etree.ElementTree.ParseError:
                tests = None
        if tests is not None:
            if process.returncode != 0 and all(each["status"] != "fail" for each in tests):
                tests.append({"name": "the end of the process", "status": "fail", "seconds": 0.0, "detail": reason})
            return tests, output, None
        tests, running = parse_output(output)
        tests.append({"name": running or "the process outside of its tests", "status": "fail", "seconds": 0.0,
                      "detail": reason})
        return tests, output, running

    def wait(self, process):
        try:
            code = process.wait(max(1, self.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"hangs: killed after the time limit of {self.timeout} s"
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def run_all(program, names, isolated):
    """Runs |names| (None: all), continuing in a new process after a crash. Prints the failures."""
    results = []
    waiting = [[name] for name in names] if isolated else [names]
    while waiting:
        batch = waiting.pop(0)
        tests, output, culprit = program.run(batch)
        for each in tests:
            if each["status"] == "fail":
                print(section(output, each["name"]))
                print(f"--- {each['name']}: {each['detail'].splitlines()[0] if each['detail'] else 'failed'}")
        results += tests
        if culprit and not isolated:
            done = {each["name"] for each in results}
            rest = [name for name in (batch or program.list()) if name not in done]
            if rest and time.monotonic() < program.deadline:
                waiting.append(rest)
            elif rest:
                print(f"not run, because the time limit was reached: {', '.join(rest)}")
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", required=True, type=pathlib.Path)
    parser.add_argument("--isolated", action="store_true")
    parser.add_argument("--timeout", type=float, default=600)
    parser.add_argument("name")
    parser.add_argument("program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    arguments.results.unlink(missing_ok=True)
    program = Program(arguments)
    names = None
    wanted = os.environ.get("CONCORD_TEST_FILTER")
    if wanted or arguments.isolated:
        names = program.list()
        if wanted:
            names = [name for name in names if re.search(wanted, f"{arguments.name}.{name}")]
    results = run_all(program, names, arguments.isolated) if names is None or names else []
    if not results and not wanted and int(os.environ.get("GTEST_TOTAL_SHARDS", 1)) == 1:
        results = [{"name": "has no tests", "status": "fail", "seconds": 0.0, "detail": "the program has no tests"}]
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    arguments.results.write_text(json.dumps({"program": arguments.name, "tests": results}))
    counts = {status: sum(each["status"] == status for each in results) for status in ("pass", "fail", "skip")}
    for each in results:
        if each["status"] == "skip":
            print(f"skipped: {each['name']}: {(each['detail'] or 'no reason given').splitlines()[-1]}")
    print(f"{arguments.name}: {counts['pass']} passed, {counts['fail']} failed, {counts['skip']} skipped")
    sys.exit(1 if counts["fail"] else 0)


if __name__ == "__main__":
    main()
