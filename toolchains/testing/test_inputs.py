#!/usr/bin/env python3
"""Prints a fingerprint of everything that the tests of a build depend on: equal for the same programs and files.

Usage: test_inputs.py CHECKOUT BUILD. Hashes the programs and libraries in BUILD, its ctest lists, every file of
CHECKOUT that git does not ignore except *.md, which no test reads, the version of the installed libtorch, and the
system. Prints nothing if CHECKOUT is not a git checkout.
"""

import hashlib
import os
import pathlib
import platform
import subprocess
import sys


def checkout_files(root):
    listed = subprocess.run(["git", "-C", root, "ls-files", "-coz", "--exclude-standard"], capture_output=True)
    if listed.returncode != 0:
        return None
    return sorted({root / os.fsdecode(name) for name in listed.stdout.split(b"\0") if name and not name.endswith(b".md")})


def built_files(folder):
    for place, folders, names in os.walk(folder):
        # Skip output of the compiler and of tests.
        folders[:] = sorted(set(folders) - {"CMakeFiles", "Testing", "cache", "test-results"})
        for name in sorted(names):
            path = pathlib.Path(place, name)
            if name == "CTestTestfile.cmake" or ".so" in name or os.access(path, os.X_OK):
                yield path


def fingerprint(root, folder):
    files = checkout_files(root)
    if files is None:
        return None
    whole = hashlib.sha256(f"{platform.platform()} {sys.version}".encode())
    for path in [*files, *built_files(folder), root / ".venv/.installed"]:
        whole.update(os.fsencode(path) + b"\0")
        if path.is_symlink():
            whole.update(os.fsencode(os.readlink(path)))
        elif path.is_file():
            whole.update(hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()


if __name__ == "__main__":
    print(fingerprint(*(pathlib.Path(each).absolute() for each in sys.argv[1:3])) or "")
