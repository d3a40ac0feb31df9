"""Tests of run_checks.py, with checks of a line or two; by a Python without torch, so that nothing has to be
imported.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).parent
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "CONCORD_TEST_FILTER"}  # ./run test FILTER sets it
SCRIPTS = {
    "passes": "import sys, near; assert sys.argv[1:] == ['one', 'two'] and __name__ == '__main__' and near.by",
    "fails": "import sys; print('what it said'); sys.exit('1 is not 2')",
    "throws": "raise RuntimeError('thrown')",
    "skips": "import sys; print('no transformers here'); sys.exit(77)",
    "dies": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "changes": "import os, sys; os.environ['CHANGED'] = '1'; sys.modules['near'] = None; os.chdir('/')",
}


class RunChecks(unittest.TestCase):
    def run_checks(self, *names, shard="0/1", costs=(), **environment):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            (folder / "near.py").write_text("by = True\n")
            lines = []
            for index, name in enumerate(names):
                (folder / f"{name}.py").write_text(SCRIPTS[name])
                lines.append(f"{name}.Check|{costs[index] if costs else 1}|{folder}/{name}.py;one;two\n")
            (folder / "list").write_text("".join(lines))
            results = folder / "results" / "group.json"
            done = subprocess.run([sys.executable, "-B", HERE / "run_checks.py", "--results", results, "--shard", shard, "group",
                                   folder / "list"], capture_output=True, text=True, env=ENVIRONMENT | environment)
            tests = json.loads(results.read_text())["tests"]
            return done.returncode, {each["name"].split(".")[0]: each["status"] for each in tests}, done.stdout

    def test_each_check_has_a_verdict_of_its_own(self):
        code, tests, said = self.run_checks("fails", "dies", "throws", "skips", "passes")
        self.assertEqual(code, 1)
        self.assertEqual(tests, {"fails": "fail", "dies": "fail", "throws": "fail", "skips": "skip", "passes": "pass"})
        self.assertIn("what it said\n1 is not 2", said)
        self.assertIn("RuntimeError: thrown", said)
        self.assertIn("dies.Check: fail", said)
        self.assertIn("killed by SIGKILL", said)
        self.assertTrue(said.endswith("group: 3 of 5 failed: fails.Check, dies.Check, throws.Check\n"), said)

    def test_a_check_changes_nothing_for_the_next(self):
        self.assertEqual(self.run_checks("changes", "passes")[:2], (0, {"changes": "pass", "passes": "pass"}))

    def test_shards_divide_the_cost_and_miss_nothing(self):
        names, costs = ("passes", "skips", "changes"), (3, 1, 2)
        self.assertEqual(self.run_checks(*names, costs=costs, shard="0/2")[1], {"passes": "pass"})
        self.assertEqual(self.run_checks(*names, costs=costs, shard="1/2")[1], {"changes": "pass", "skips": "skip"})

    def test_a_filter_chooses_by_name(self):
        self.assertEqual(self.run_checks("fails", "passes", CONCORD_TEST_FILTER="^pass")[:2], (0, {"passes": "pass"}))


if __name__ == "__main__":
    unittest.main()
