#!/usr/bin/env python3
"""Prints, for each test that failed, its name and the last lines it wrote.

Usage: failed_tests.py SUITE JUNIT. JUNIT is the file that `ctest --output-junit` writes. For the end of a long run, whose
middle nobody scrolls back to.
"""

import sys
import xml.etree.ElementTree

LINES = 25
WIDTH = 240


def main():
    suite, path = sys.argv[1:]
    for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase"):
        if case.get("status") != "fail":
            continue
        print(f"--- {suite}: {case.get('name')} failed; the end of its output:")
        text = "".join(part.text or "" for part in case.iter("system-out"))
        for line in text.rstrip().splitlines()[-LINES:]:
            print("    " + line[:WIDTH])


if __name__ == "__main__":
    main()
