#!/usr/bin/env python3
"""Tests what header_samples.py recognises as a sample, its output, and what it rejects."""

import contextlib
import io
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import header_samples

PLAIN = """// A part.
//
// Example, given int a,
// long b:
//   #include <string>
//   use(a, b);  // "..." is left out
//
// More prose; it says:
//   first    nothing is compiled here;
#pragma once
namespace concord::parts {
}
"""


class HeaderSamples(unittest.TestCase):
    def run_on(self, files):
        """Returns the exit code, the output, and the written files."""
        with tempfile.TemporaryDirectory() as root, tempfile.TemporaryDirectory() as output:
            for path, text in files.items():
                os.makedirs(os.path.join(root, os.path.dirname(path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                    file.write(text)
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                code = header_samples.main([root, output])
            return code, printed.getvalue(), {name: header_samples.read(os.path.join(output, name))
                                              for name in os.listdir(output)}

    def test_a_sample_becomes_a_function_of_what_is_given(self):
        code, printed, made = self.run_on({"core/part.h": PLAIN})
        self.assertEqual(code, 0, printed)
        source = made["samples.cpp"]
        self.assertIn("namespace concord::parts::sample_0 {\n[[maybe_unused]] void sample(int a, long b) {\n", source)
        self.assertIn('#line 5 "', source)
        self.assertIn('core/part.h"\n\nuse(a, b);', source)
        self.assertLess(source.index("#include <string>"), source.index("namespace"))
        self.assertNotIn("nothing is compiled", source)

    def test_file_scope_and_files(self):
        text = ("// Example file list.inc:\n//   ENTRY(a)\n//\n// Example at file scope:\n//   struct S {\n"
                '//   #include "list.inc"\n//   };\n#pragma once\n')
        code, printed, made = self.run_on({"platform/sdk/part.hpp": text})
        self.assertEqual(code, 0, printed)
        self.assertEqual(made["list.inc"], "ENTRY(a)\n")
        self.assertIn('part.hpp"\nstruct S {\n#include "list.inc"\n};\n', made["samples.cpp"])

    def test_samples_that_need_libtorch_are_apart(self):
        code, printed, made = self.run_on({
            "core/part.h": PLAIN,
            "core/tensor.h": "#include <ATen/core/Tensor.h>\n",
            "core/user.h": '// Example:\n//   f();\n#include "core/tensor.h"\n',
        })
        self.assertEqual(code, 0, printed)
        self.assertIn("f();", made["samples_torch.cpp"])
        self.assertNotIn("f();", made["samples.cpp"])

    def test_code_without_a_mark_is_refused(self):
        code, printed, _ = self.run_on({"core/part.h": PLAIN, "trainer/x.h": "// As in\n//   call(it);   // so\n"})
        self.assertEqual(code, 1)
        self.assertIn("error: trainer/x.h:2: code in a comment that is not compiled", printed)

    def test_a_mark_without_code_is_refused(self):
        code, printed, _ = self.run_on({"core/part.h": "// Example:\n// call(it)\n"})
        self.assertEqual(code, 1)
        self.assertIn("error: core/part.h:1: the example has no lines", printed)

    def test_no_sample_at_all_fails(self):
        code, printed, _ = self.run_on({"core/part.h": "// Nothing.\n"})
        self.assertEqual(code, 2)
        self.assertIn("has an example", printed)


if __name__ == "__main__":
    unittest.main()
