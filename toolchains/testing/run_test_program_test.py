#!/usr/bin/env python3
"""Tests of run_test_program.py, with a stand-in for a GoogleTest program."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).parent
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "CONCORD_TEST_FILTER"}  # ./run test FILTER sets it

# A.Passes, A.Fails, A.Skips, and what its first argument adds: B.Dies kills the process, B.Hangs sleeps.
PROGRAM = r'''#!/usr/bin/env python3
import os, sys, time
kind = sys.argv[1]
tests = {"": [], "plain": ["A.Passes", "A.Fails", "A.Skips"], "good": ["A.Passes"], "leaks": ["A.Passes"],
         "dies": ["A.Passes", "B.Dies", "C.Passes"], "hangs": ["B.Hangs", "C.Passes"]}[kind]
if "--gtest_list_tests" in sys.argv:
    for test in tests:
        print(test.split(".")[0] + ".\n  " + test.split(".")[1] + "  # GetParam() = 3")
    sys.exit()
wanted = os.environ.get("GTEST_FILTER", ":".join(tests)).split(":")
cases = []
for test in [each for each in tests if each in wanted]:
    print("[ RUN      ]", test, flush=True)
    if test == "B.Dies":
        os.abort()
    if test == "B.Hangs":
        time.sleep(60)
    end = {"A.Fails": "[  FAILED  ]", "A.Skips": "[  SKIPPED ]"}.get(test, "[       OK ]")
    print("what it said\n" + end, test, "(0 ms)", flush=True)
    inside = {"A.Fails": '<failure message="1 is not 2"/>', "A.Skips": '<skipped message="no device"/>'}.get(test, "")
    suite, name = test.split(".")
    result = "skipped" if test == "A.Skips" else "completed"
    cases.append(f'<testcase name="{name}" status="run" result="{result}" time="0.5" classname="{suite}">{inside}</testcase>')
path = next(each for each in sys.argv if each.startswith("--gtest_output")).split(":", 1)[1]
open(path, "w").write("<testsuites>" + "".join(cases) + "</testsuites>")
sys.exit(1 if "A.Fails" in wanted and kind == "plain" or kind == "leaks" else 0)
'''


class RunTestProgram(unittest.TestCase):
    def run_program(self, kind, *options, **environment):
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder, "program")
            program.write_text(PROGRAM)
            program.chmod(0o755)
            results = pathlib.Path(folder, "results", "name.json")
            done = subprocess.run([sys.executable, HERE / "run_test_program.py", "--results", results, *options, "name",
                                   program, kind], capture_output=True, text=True, env=ENVIRONMENT | environment)
            tests = json.loads(results.read_text())["tests"]
            return done.returncode, {each["name"]: each["status"] for each in tests}, done.stdout

    def test_every_test_is_written_down_and_a_failure_is_shown_with_what_it_said(self):
        code, tests, said = self.run_program("plain")
        self.assertEqual((code, tests), (1, {"A.Passes": "pass", "A.Fails": "fail", "A.Skips": "skip"}))
        self.assertIn("what it said", said)
        self.assertIn("--- A.Fails: 1 is not 2", said)
        self.assertIn("skipped: A.Skips: no device", said)
        self.assertNotIn("A.Passes", said)

    def test_all_passed(self):
        self.assertEqual(self.run_program("good")[:2], (0, {"A.Passes": "pass"}))

    def test_a_crash_is_named_and_the_rest_still_runs(self):
        code, tests, said = self.run_program("dies")
        self.assertEqual((code, tests), (1, {"A.Passes": "pass", "B.Dies": "fail", "C.Passes": "pass"}))
        self.assertIn("--- B.Dies: killed by SIGABRT", said)

    def test_a_hang_is_named(self):
        code, tests, said = self.run_program("hangs", "--timeout", "2")
        self.assertEqual((code, tests["B.Hangs"]), (1, "fail"))
        self.assertIn("--- B.Hangs: hangs", said)
        self.assertIn("not run, because the time limit was reached: C.Passes", said)

    def test_a_process_that_fails_after_its_tests_has_failed(self):
        code, tests, _ = self.run_program("leaks")
        self.assertEqual((code, tests), (1, {"A.Passes": "pass", "the end of the process": "fail"}))

    def test_isolated_tests_have_processes_of_their_own(self):
        code, tests, _ = self.run_program("dies", "--isolated")
        self.assertEqual((code, tests), (1, {"A.Passes": "pass", "B.Dies": "fail", "C.Passes": "pass"}))

    def test_a_filter_looks_at_the_whole_name(self):
        self.assertEqual(self.run_program("dies", CONCORD_TEST_FILTER=r"^name\.[AC]")[:2],
                         (0, {"A.Passes": "pass", "C.Passes": "pass"}))

    def test_no_tests_is_a_failure(self):
        self.assertEqual(self.run_program("")[0], 1)


if __name__ == "__main__":
    unittest.main()
