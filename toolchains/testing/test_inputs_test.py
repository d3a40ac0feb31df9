#!/usr/bin/env python3
"""Tests of test_inputs.py in a small checkout."""

import pathlib
import subprocess
import tempfile
import unittest

from test_inputs import fingerprint


class TestInputs(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)
        self.build = self.root / "build-asan"
        subprocess.run(["git", "init", "-q", self.root], check=True)
        for name, text in ((".gitignore", "/build*\n"), ("data.json", "1"), ("README.md", "read"), ("build-asan/lib/libx.so", "lib"),
                           ("build-asan/tests/a_test", "program"), ("build-asan/tests/CTestTestfile.cmake", "add_test(a)"),
                           ("build-asan/CMakeFiles/x.so", "object"), ("build-asan/junit.xml", "<>")):
            self.write(name, text)
        (self.build / "tests/a_test").chmod(0o755)
        self.first = fingerprint(self.root, self.build)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def test_what_a_test_reads_counts(self):
        for name in ("data.json", "build-asan/lib/libx.so", "build-asan/tests/a_test", "build-asan/tests/CTestTestfile.cmake"):
            before = (self.root / name).read_text()
            self.write(name, "changed")
            self.assertNotEqual(fingerprint(self.root, self.build), self.first, name)
            self.write(name, before)
        self.assertEqual(fingerprint(self.root, self.build), self.first)
        self.write("new.json", "2")
        self.assertNotEqual(fingerprint(self.root, self.build), self.first)

    def test_what_no_test_reads_does_not(self):
        for name in ("README.md", "build-asan/CMakeFiles/x.so", "build-asan/junit.xml"):
            self.write(name, "changed")
        self.assertEqual(fingerprint(self.root, self.build), self.first)

    def test_without_git_there_is_none(self):
        subprocess.run(["rm", "-r", self.root / ".git"], check=True)
        self.assertIsNone(fingerprint(self.root, self.build))


if __name__ == "__main__":
    unittest.main()
