#!/usr/bin/env python3
"""Runs a command and requires both its success and its output: expect_output.py PATTERN COMMAND...

The exit code is the command's unless that is 0; then it is 1 if the regular expression PATTERN matches nowhere in its
output. (ctest's PASS_REGULAR_EXPRESSION ignores the exit code.) All output is passed on.
"""

import re
import subprocess
import sys


def main():
    pattern, command = sys.argv[1], sys.argv[2:]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    print(done.stdout, end="", flush=True)
    if done.returncode:
        sys.exit(done.returncode if done.returncode > 0 else 128 - done.returncode)
    if not re.search(pattern, done.stdout):
        sys.exit(f"{command[0]} succeeded, but nothing that it printed matches {pattern!r}")


if __name__ == "__main__":
    main()
