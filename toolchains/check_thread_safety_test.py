#!/usr/bin/env python3
"""Tests which sources check_thread_safety.py reads and, with libclang, that it finds a use without the mutex."""

import contextlib
import importlib.util
import io
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import check_thread_safety

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
COUNTER = """#include <mutex>
#include "platform/base/thread_safety.hpp"
struct Counter {{
  int next() {{
    {lock}
    return ++value;
  }}
  std::mutex mutex;
  int value CONCORD_GUARDED_BY(mutex) = 0;
}};
int use(Counter& counter) {{ return counter.next(); }}
"""


class CheckThreadSafety(unittest.TestCase):
    def run_on(self, lock):
        with tempfile.TemporaryDirectory() as root:
            os.makedirs(root + "/platform/base")
            os.makedirs(root + "/core")
            with open(os.path.join(root, check_thread_safety.HEADER), "w", encoding="utf-8") as file:
                file.write(check_thread_safety.read(os.path.join(ROOT, check_thread_safety.HEADER)))
            for name, text in (("counter.cpp", COUNTER.format(lock=lock)), ("other.cpp", "int x;\n")):
                with open(os.path.join(root, "core", name), "w", encoding="utf-8") as file:
                    file.write(text)
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                code = check_thread_safety.main([root])
            return code, printed.getvalue()

    def test_the_systems_headers_take_the_attributes(self):
        with tempfile.TemporaryDirectory() as folder:
            check_thread_safety.write_annotated(folder, check_thread_safety.system_includes())
            text = check_thread_safety.read(folder + "/bits/std_mutex.h")
        self.assertIn('class __attribute__((capability("mutex"))) mutex :', text)

    def test_a_header_that_looks_different_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "no 'class mutex :'"):
            check_thread_safety.annotate("class other {};", check_thread_safety.ANNOTATED["bits/std_mutex.h"])

    @unittest.skipIf(importlib.util.find_spec("clang") is None, "there is no libclang")
    def test_a_use_without_the_mutex_is_found(self):
        for lock in ("const std::lock_guard lock(mutex);", "std::unique_lock lock(mutex);"):
            code, printed = self.run_on(lock)
            self.assertEqual(code, 0, printed)
            self.assertIn("1 sources, 0 left out, 0 complaints", printed)
        code, printed = self.run_on("")
        self.assertEqual(code, 1, printed)
        self.assertIn("error: core/counter.cpp:6: writing variable 'value' requires holding mutex 'mutex'", printed)

    @unittest.skipIf(importlib.util.find_spec("clang") is not None, "there is libclang")
    def test_without_libclang_it_is_skipped(self):
        self.assertEqual(self.run_on("")[0], 77)


if __name__ == "__main__":
    unittest.main()
