#!/usr/bin/env python3
"""Tests of expect_output.py."""

import pathlib
import subprocess
import sys
import unittest

FOLDER = pathlib.Path(__file__).parent


def run(pattern, script):
    done = subprocess.run([sys.executable, FOLDER / "expect_output.py", pattern, "sh", "-c", script],
                          capture_output=True, text=True)
    return done.returncode, done.stdout


class ExpectOutput(unittest.TestCase):
    def test_a_command_passes_only_with_exit_code_0_and_the_expected_text(self):
        self.assertEqual(run("fox[^a-z]*runs", "echo fox; echo runs >&2"), (0, "fox\nruns\n"))
        self.assertEqual(run("fox", "echo fox; exit 3"), (3, "fox\n"))
        self.assertEqual(run("fox", "echo dog"), (1, "dog\n"))

    def test_a_command_that_is_killed_fails_and_one_that_skips_is_skipped(self):
        self.assertEqual(run("fox", "echo fox; kill -KILL $$")[0], 137)
        self.assertEqual(run("fox", "echo no fox here; exit 77")[0], 77)

    def test_no_check_is_judged_by_its_text_alone(self):
        root = FOLDER.parent.parent
        lists = [path for name in ("backends", "core", "examples", "platform", "tests", "toolchains", "trainer")
                 for kind in ("CMakeLists.txt", "*.cmake") for path in (root / name).rglob(kind)]
        self.assertGreater(len(lists), 40)
        found = [str(path) for path in lists if "PASS_REGULAR_EXPRESSION" in path.read_text()]
        self.assertEqual(found, [])


if __name__ == "__main__":
    unittest.main()
