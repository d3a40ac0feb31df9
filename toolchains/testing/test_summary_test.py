#!/usr/bin/env python3
"""Tests of test_summary.py on files as ctest and run_test_program.py write them."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

SUMMARY = pathlib.Path(__file__).parent / "test_summary.py"
JUNIT = """<testsuite name="x" tests="3">
<testcase name="one_test" time="2.5" status="{program}"><system-out>it said</system-out></testcase>
<testcase name="plain" time="70" status="run"><system-out></system-out></testcase>
<testcase name="browser" time="1" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/>
<system-out>there is no browser</system-out></testcase>{more}
</testsuite>"""


class TestSummary(unittest.TestCase):
    def summary(self, tests, program="run", more=(), cases=""):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "junit.xml").write_text(JUNIT.format(program=program, more=cases))
            results = pathlib.Path(folder, "test-results")
            results.mkdir()
            if tests is not None:
                named = [{"name": f"A.T{i}", "status": status, "detail": "why"} for i, status in enumerate(tests)]
                (results / "one_test.json").write_text(json.dumps({"program": "one_test", "tests": named}))
            more = [each.format(folder=folder) for each in more]
            done = subprocess.run([sys.executable, SUMMARY, f"release={folder}=12=34", *more], capture_output=True, text=True)
            return done.returncode, done.stdout

    def test_each_test_of_a_program_counts_and_the_skipped_ones_are_named(self):
        code, said = self.summary(["pass", "pass", "skip"])
        self.assertEqual(code, 0)
        self.assertTrue(said.endswith("\n3 passed, 0 failed, 2 skipped\n"), said)
        self.assertIn("skipped, release: one_test.A.T2: why", said)
        self.assertIn("skipped, release: browser: there is no browser", said)
        self.assertIn("70.0 s  release: plain", said)

    def test_a_failure_is_shown_with_the_end_of_its_output(self):
        code, said = self.summary(["pass", "fail"], program="fail")
        self.assertEqual(code, 1)
        self.assertIn("--- release: one_test failed; the end of its output:\n    it said", said)
        self.assertTrue(said.endswith("\n2 passed, 1 failed, 1 skipped\n"), said)

    def test_a_program_without_results_that_failed_counts_once(self):
        self.assertTrue(self.summary(None, program="fail")[1].endswith("\n1 passed, 1 failed, 1 skipped\n"))

    def test_steps_without_tests_count_once(self):
        code, said = self.summary(["pass"], more=["format=passed=3=", "cross=failed=9=", "x=skipped=0=a = b is missing"])
        self.assertEqual(code, 1)
        self.assertTrue(said.endswith("\n3 passed, 1 failed, 2 skipped\n"), said)
        self.assertIn("skipped, x: x: a = b is missing", said)

    def test_what_passed_earlier_is_no_part_of_what_passed(self):
        code, said = self.summary(["pass", "pass", "skip"], more=["asan={folder}=3=earlier"])
        self.assertEqual(code, 0)
        self.assertIn("\n3 passed earlier with the same programs and files and were not run again: asan (", said)
        self.assertTrue(said.endswith("\n3 passed, 0 failed, 4 skipped\n"), said)
        self.assertNotIn("asan: plain", said)

    def test_a_test_whose_program_is_missing_has_failed(self):
        missing = """<testcase name="gone" time="0" status="notrun"><skipped message="Unable to find executable"/>
<system-out>Unable to find executable: gone</system-out></testcase>"""
        code, said = self.summary(["pass"], cases=missing)
        self.assertEqual(code, 1)
        self.assertTrue(said.endswith("\n2 passed, 1 failed, 1 skipped\n"), said)

    def test_a_suite_without_tests_has_failed(self):
        done = subprocess.run([sys.executable, SUMMARY, "release=/nowhere=1=1"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)


if __name__ == "__main__":
    unittest.main()
