#!/usr/bin/env python3
"""Tests of select_tests.py."""

import pathlib
import tempfile
import unittest

from select_tests import select


class SelectTests(unittest.TestCase):
    def test_programs_are_chosen_by_the_names_in_their_sources(self):
        with tempfile.TemporaryDirectory() as folder:
            one, two = pathlib.Path(folder, "one.cpp"), pathlib.Path(folder, "two.cpp")
            one.write_text("TEST(Swiglu, IsRight) {\nTEST_P(\n    Rope, Turns) {\n")
            two.write_text("TEST_F(Linear, IsRight) {\n")
            lines = [f"ops_test|ops_test|{one};{two}", f"linear_test|linear_test|{two}", "conformance.quick|kit;plugin|"]
            self.assertEqual(select(lines, "Swiglu"), [("ops_test", ["ops_test"])])
            self.assertEqual(select(lines, "ops_test.Rope.T"), [("ops_test", ["ops_test"])])
            self.assertEqual(len(select(lines, "Linear")), 2)
            self.assertEqual(select(lines, "^conf"), [("conformance.quick", ["kit", "plugin"])])
            listed = pathlib.Path(folder, "listed.checks")
            listed.write_text("lora.TrainsAsPeft|60|lora.py;concord\n")
            self.assertEqual(select([*lines, f"checks|concord|{listed}"], "^lora"), [("checks", ["concord"])])
            # It may be the name of a parameter: all programs are run.
            self.assertEqual([test for test, _ in select(lines, "Tp2Dp2")], ["ops_test", "linear_test"])


if __name__ == "__main__":
    unittest.main()
