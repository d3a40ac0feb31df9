#!/usr/bin/env python3
"""Checks that the C++, C and CUDA sources are formatted according to .clang-format, including its column limit.

Usage: check_format.py CLANG_FORMAT ROOT [--fix]. CLANG_FORMAT is the pinned version (see ./run): another one formats
differently. The formatter does not touch comments (ReflowComments: it would join lists), so the limit is checked here.
Between `clang-format off` and `clang-format on` neither holds. --fix formats in place.
"""

import pathlib
import subprocess
import sys

LIMIT = 120
SUFFIXES = {".c", ".cpp", ".cu", ".cuh", ".h", ".hpp"}
FROZEN = "tests/abi/v1_0/"  # headers of the first version, as they were released


def sources(root):
    listed = subprocess.run(["git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard"],
                            check=True, capture_output=True, text=True).stdout
    return [name for name in listed.splitlines()
            if pathlib.PurePath(name).suffix in SUFFIXES and not name.startswith(FROZEN) and (root / name).is_file()]


def long_lines(text):
    formatted = True
    for number, line in enumerate(text.splitlines(), 1):
        if "clang-format off" in line:
            formatted = False
        elif "clang-format on" in line:
            formatted = True
        elif formatted and len(line) > LIMIT:
            yield number, len(line)


def main():
    clang_format, root, fix = sys.argv[1], pathlib.Path(sys.argv[2]), "--fix" in sys.argv[3:]
    names = sources(root)
    if not names:
        sys.exit(f"check_format: no sources below {root}")
    mode = ["-i"] if fix else ["--dry-run", "--Werror", "--ferror-limit=1"]
    code = subprocess.run([clang_format, *mode, *names], cwd=root).returncode
    for name in names:
        for number, length in long_lines((root / name).read_text()):
            print(f"{name}:{number}: {length} columns; the limit is {LIMIT}")
            code = 1
    if code:
        sys.exit("check_format: files listed above are not formatted; run ./run format (shorten long comments by hand)")
    print(f"{len(names)} files are formatted")


if __name__ == "__main__":
    main()
