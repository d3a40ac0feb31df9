#!/usr/bin/env python3
"""Runs the benchmark programs of a build and prints their rows; started by ./run bench.

A program called with --json prints one JSON document: a list of rows, or an object with such a list as "rows". A row is
{name, ours, peer, unit, ratio, goal, met}; peer, ratio, goal and met are null if there is nothing to compare with. A
program may take a part of a row's name as its first argument, to measure only those rows; otherwise it exits with 2.
"""

import argparse
import json
import os
import re
import subprocess
import sys

FIELDS = ("name", "ours", "peer", "unit", "ratio", "goal", "met")


def programs_in(folder):
    if not os.path.isdir(folder):
        return []
    paths = [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
    return [path for path in paths if os.path.isfile(path) and os.access(path, os.X_OK)]


def run(program, part):
    """Runs |program|, for the rows with |part| in their name if requested and supported."""
    if part:
        done = subprocess.run([program, part, "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                              check=False)
        if done.returncode != 2:
            return done
    return subprocess.run([program, "--json"], stdout=subprocess.PIPE, text=True, check=False)


def rows_of(program, part):
    """Returns the rows of |program|; raises RuntimeError with a message if there are none."""
    name = os.path.basename(program)
    done = run(program, part)
    if done.returncode != 0:
        raise RuntimeError(f"{name} ended with code {done.returncode}")
    try:
        document = json.loads(done.stdout)
    except json.JSONDecodeError as error:
        raise RuntimeError(f"{name} --json printed no JSON document: {error}") from error
    rows = document.get("rows") if isinstance(document, dict) else document
    if not isinstance(rows, list) or not (rows or part):
        raise RuntimeError(f"{name} --json printed no rows")
    for row in rows:
        missing = [field for field in FIELDS if field not in row]
        if missing:
            raise RuntimeError(f"{name} printed a row without {', '.join(missing)}: {row}")
    return rows


def number(value):
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)


def table(rows):
    lines = [["name", "ours", "peer", "unit", "ratio", "goal", "met"]]
    for row in rows:
        met = {True: "yes", False: "NO", None: "-"}[row["met"]]
        lines.append([row["name"], *(number(row[field]) for field in ("ours", "peer")), row["unit"],
                      *(number(row[field]) for field in ("ratio", "goal")), met])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


def main():
    parser = argparse.ArgumentParser(prog="./run bench", description="Runs the benchmarks, each compared with its peer.")
    parser.add_argument("filter", nargs="?", default="", help="a regular expression: programs or rows whose name matches")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output, nothing else")
    parser.add_argument("--programs", required=True, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    try:
        wanted = re.compile(arguments.filter)
    except re.error as error:
        parser.error(f"'{arguments.filter}' is not a regular expression: {error}")

    rows, failures = [], []
    programs = programs_in(arguments.programs)
    chosen = [program for program in programs if wanted.search(os.path.basename(program))]
    plain = re.fullmatch(r"[\w/ -]*", arguments.filter)
    part = arguments.filter if plain and not chosen else ""
    for program in chosen or programs:
        print(f"bench: {os.path.basename(program)}", file=sys.stderr, flush=True)
        try:
            found = rows_of(program, part)
        except (RuntimeError, OSError) as error:
            print(f"bench: {error}", file=sys.stderr)
            failures.append(str(error))
            continue
        if not chosen:
            found = [row for row in found if wanted.search(row["name"])]
        rows += found
        if found and not arguments.json:
            print(table(found), flush=True)
    return finish(arguments, programs, rows, failures)


def finish(arguments, programs, rows, failures):
    with_goal = [row for row in rows if row["goal"] and row["met"] is not None]
    met = sum(row["met"] for row in with_goal)
    if arguments.json:
        print(json.dumps({"rows": rows, "goals": len(with_goal), "met": met, "failures": failures}, indent=1))
    else:
        print(f"{len(rows)} rows, {met} of {len(with_goal)} goals met, {len(failures)} programs failed")
    if not rows and not failures:
        names = ", ".join(os.path.basename(program) for program in programs) or "none was built"
        print(f"bench: nothing matches '{arguments.filter}'; the programs are: {names}", file=sys.stderr)
    return 0 if rows and not failures else 1


if __name__ == "__main__":
    sys.exit(main())
