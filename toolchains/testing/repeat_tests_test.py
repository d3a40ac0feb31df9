#!/usr/bin/env python3
"""Tests of repeat_tests.py with a ctest that fails one of its tests in every second run."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).parent / "repeat_tests.py"
CTEST = """#!/bin/sh
cd {folder}
echo "$@" >>calls
verdict=pass status=run
if [ $(($(wc -l <calls) % 2)) = 0 ]; then verdict=fail status=fail; fi
mkdir -p test-results
echo '{{"program": "a_test", "tests": [{{"name": "A.Port", "status": "'$verdict'", "detail": "why"}}]}}' >test-results/a_test.json
echo '<testsuite><testcase name="a_test" time="1" status="'$status'"><system-out>in use</system-out></testcase></testsuite>' >junit.xml
exit 8
"""


class RepeatTests(unittest.TestCase):
    def repeat(self, ctest, *more):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "tests.txt").write_text("a_test|a_test|\nb_test|b_test|\n")
            (folder / "ctest").write_text(ctest.format(folder=folder))
            (folder / "ctest").chmod(0o755)
            done = subprocess.run([sys.executable, "-B", SCRIPT, folder, "--times", "5", *more], capture_output=True, text=True,
                                  env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}, check=False)
            calls = folder / "calls"
            return done.returncode, done.stdout, calls.read_text().splitlines() if calls.exists() else []

    def test_failures_are_counted_per_test(self):
        code, said, calls = self.repeat(CTEST)
        self.assertEqual(code, 1, said)
        self.assertEqual(len(calls), 5)
        self.assertIn("-j 8", calls[0])
        self.assertIn("-LE ^(exhaustive|sanitized|slow)$", calls[0])
        self.assertIn("run 1 of 5: 1 passed, 0 failed, 0 skipped", said)
        self.assertIn("run 2: a_test failed; the end of its output:\n    in use", said)
        self.assertTrue(said.endswith("\nfailed in 2 of 5 runs: a_test.A.Port\n"), said)

    def test_a_filter_selects_programs(self):
        _, _, calls = self.repeat(CTEST, "--filter", "b_t", "--programs", "3")
        self.assertIn("-j 3", calls[0])
        self.assertIn("-R ^(b_test)([.][0-9]+)?$", calls[0])

    def test_runs_without_tests_fail(self):
        code, said, _ = self.repeat("#!/bin/sh\n")
        self.assertEqual(code, 1, said)
        self.assertIn("no test ran", said)


if __name__ == "__main__":
    unittest.main()
