#!/usr/bin/env python3
"""Tests of bench.py with fake programs."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

BENCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bench.py")


def row(name, met=True, goal=2.0):
    return {"name": name, "ours": 1.0, "peer": 3.0, "unit": "us", "ratio": 3.0, "goal": goal, "met": met}


class Bench(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def program(self, name, document, takes_filter=False, code=0):
        """Creates a program that prints |document|, and the rows of its argument if it |takes_filter|."""
        path = os.path.join(self.folder.name, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"#!{sys.executable}\nimport json, sys\n"
                       f"part = [word for word in sys.argv[1:] if word != '--json']\n"
                       f"if part and not {takes_filter}: sys.exit(2)\n"
                       f"document = json.loads({json.dumps(document)!r})\n"
                       f"if part: document = [row for row in document if part[0] in row['name']]\n"
                       f"print(json.dumps(document))\nsys.exit({code})\n")
        os.chmod(path, 0o755)

    def bench(self, *arguments):
        done = subprocess.run([sys.executable, "-B", BENCH, "--programs", self.folder.name, *arguments],
                              capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    def names(self, *arguments):
        code, out, err = self.bench("--json", *arguments)
        self.assertEqual(code, 0, err)
        return [found["name"] for found in json.loads(out)["rows"]]

    def test_json_is_one_document_with_the_rows_of_all_programs(self):
        self.program("a", [row("a/1")])
        self.program("b", {"rows": [row("b/1", met=False), row("b/2", met=None)]})
        code, out, _ = self.bench("--json")
        self.assertEqual(code, 0)
        document = json.loads(out)
        self.assertEqual([found["name"] for found in document["rows"]], ["a/1", "b/1", "b/2"])
        self.assertEqual((document["goals"], document["met"], document["failures"]), (2, 1, []))

    def test_the_table_says_which_goals_were_missed(self):
        self.program("a", [row("a/1"), row("a/2", met=False)])
        code, out, _ = self.bench()
        self.assertEqual(code, 0)
        self.assertRegex(out, r"a/1 .*yes\n")
        self.assertRegex(out, r"a/2 .*NO\n")
        self.assertIn("2 rows, 1 of 2 goals met, 0 programs failed", out)

    def test_a_filter_chooses_programs_then_rows(self):
        self.program("a_bench", [row("one"), row("two")])
        self.program("b_bench", [row("two"), row("three")], takes_filter=True)
        self.assertEqual(self.names("a_bench"), ["one", "two"])
        self.assertEqual(self.names("two"), ["two", "two"])
        self.assertEqual(self.names("one|three"), ["one", "three"])

    def test_nothing_that_matches_is_a_failure(self):
        self.program("a", [row("one")])
        code, _, err = self.bench("zebra")
        self.assertEqual(code, 1)
        self.assertIn("nothing matches 'zebra'; the programs are: a", err)

    def test_a_program_that_fails_is_a_failure_and_the_others_still_run(self):
        self.program("a", [row("one")], code=3)
        self.program("b", [row("two")])
        code, out, err = self.bench("--json")
        self.assertEqual(code, 1)
        self.assertEqual([found["name"] for found in json.loads(out)["rows"]], ["two"])
        self.assertIn("a ended with code 3", err)

    def test_a_row_without_a_field_is_a_failure(self):
        self.program("a", [{"name": "one", "ours": 1}])
        code, _, err = self.bench()
        self.assertEqual(code, 1)
        self.assertIn("without peer, unit, ratio, goal, met", err)


if __name__ == "__main__":
    unittest.main()
