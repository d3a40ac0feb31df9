#!/usr/bin/env python3
import pathlib
import subprocess
import tempfile
import unittest

import check_words

RULES = check_words.read_rules("# a comment\nh  ^Of\\b  =>  a noun\n*  \\bbeside\\b  =>  next to\n")


def phrases(path, text):
    return [(line, suggestion) for line, _, suggestion in check_words.findings(path, text, RULES)]


class CheckWords(unittest.TestCase):
    def test_a_rule_holds_for_its_kinds_of_text_only(self):
        self.assertEqual(phrases("core/a.h", "// Of a rank.\nint a;\n"), [(1, "a noun")])
        self.assertEqual(phrases("core/a.cpp", "// Of a rank.\nint a;\n"), [])
        self.assertEqual(phrases("core/a.h", "int of = 0;  // Of a rank\n"), [])

    def test_comments_strings_and_docs_are_read_and_code_is_not(self):
        self.assertEqual(phrases("a.cpp", 'int beside;\nsay("two ranks beside each other");\n'), [(2, "next to")])
        self.assertEqual(phrases("a.py", '"""Two\nranks beside each other."""\nbeside = 1  # beside\n'),
                         [(2, "next to"), (3, "next to")])
        self.assertEqual(phrases("a.md", "text `beside`\n\n```\nbeside\n```\n\n- the one\n  beside it\n"), [(8, "next to")])

    def test_scripts_cmake_and_yaml_are_read(self):
        text = '#!/bin/sh\n# beside it\nif [ $# = 1 ]; then echo "one file beside another"; fi\nbeside=${x#beside}\n'
        for path in ("a.sh", "run", "a.cmake", "core/CMakeLists.txt", "a.yaml"):
            self.assertEqual(phrases(path, text), [(2, "next to"), (3, "next to")], path)
        self.assertEqual(phrases("a.inc", "// Beside.\nA(beside)  // beside it\n"), [(2, "next to")])

    def test_every_kind_of_source_is_listed(self):
        names = ("a.hpp", "a.inc", "a.sh", "a.cmake", "a.yaml", "b/CMakeLists.txt", "run")
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["git", "init", "-q", folder], check=True)
            for name in (*names, "a.txt"):
                path = pathlib.Path(folder, name)
                path.parent.mkdir(exist_ok=True)
                path.touch()
            self.assertEqual(sorted(check_words.sources(pathlib.Path(folder))), sorted(names))

    def test_a_phrase_over_two_lines_of_a_comment_is_found_at_its_first_line(self):
        rules = check_words.read_rules("c  two words  =>  one\n")
        self.assertEqual(check_words.findings("a.cpp", "int a;\n// Some two\n// words here\n", rules)[0][::2], (2, "one"))

    def test_strings_of_tests_and_names_are_not_messages(self):
        self.assertEqual(phrases("core/a_test.cpp", 'expect("two ranks beside each other");\n'), [])
        self.assertEqual(phrases("core/a.cpp", 'key("beside it");\n'), [])

    def test_a_rule_that_cannot_be_read_is_an_error(self):
        with self.assertRaisesRegex(SystemExit, "cannot read the rule"):
            check_words.read_rules("beside => next to\n")

    def test_the_rules_of_the_project_can_be_read(self):
        self.assertGreater(len(check_words.read_rules((check_words.HERE / "words.txt").read_text())), 50)


if __name__ == "__main__":
    unittest.main()
