#!/usr/bin/env python3
"""Selects the programs to build and the ctest tests to run for ./run test FILTER.

Usage: select_tests.py LIST FILTER. LIST is the build folder's tests.txt with lines TEST|TARGETS|SOURCES. Prints a
regular expression for ctest -R, then one target per line. Names are read from the sources, so that nothing has to be
built to know them: TEST(Suite, Name) in a source of the program is TEST.Suite.Name. A source called *.checks is a list
of checks that one program runs (tests/parity/run_checks.py), one per line: the name and "|". If no such name matches,
FILTER may still match one that is created at run time (Suite.Name/Parameter): then all programs are built and run.
"""

import pathlib
import re
import sys

MACRO = re.compile(r"^(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+)\s*,\s*(\w+)", re.MULTILINE)


def names_of(test, sources):
    yield test
    for source in sources:
        path = pathlib.Path(source)
        if path.suffix == ".checks":
            yield from (line.split("|")[0] for line in path.read_text().splitlines())
        elif path.is_file():
            for suite, name in MACRO.findall(path.read_text(errors="replace")):
                yield f"{test}.{suite}.{name}"


def select(lines, wanted):
    """Returns [(test, targets)] with a name that |wanted| matches, or all programs if none matches."""
    entries = [[part.split(";") if part else [] for part in line.split("|")] for line in lines]
    chosen = [(test[0], targets) for test, targets, sources in entries
              if any(re.search(wanted, name) for name in names_of(test[0], sources))]
    return chosen or [(test[0], targets) for test, targets, sources in entries if sources]


def expression(chosen):
    """Returns ctest's regular expression for the tests that select() has chosen, with all their shards."""
    return "^(" + "|".join(re.escape(test) for test, _ in chosen) + ")([.][0-9]+)?$"


def main():
    try:
        wanted = re.compile(sys.argv[2])
    except re.error as error:
        sys.exit(f"run: '{sys.argv[2]}' is not a regular expression: {error}")
    chosen = select(pathlib.Path(sys.argv[1]).read_text().splitlines(), wanted)
    if not chosen:
        sys.exit(f"run: no test matches '{sys.argv[2]}'")
    print(expression(chosen))
    print("\n".join(sorted({target for _, targets in chosen for target in targets} or {"concord_tests"})))


if __name__ == "__main__":
    main()
