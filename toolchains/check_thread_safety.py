#!/usr/bin/env python3
"""Checks that members with CONCORD_GUARDED_BY are used only with their mutex.

Usage: check_thread_safety.py ROOT [--torch FOLDER] [--include FOLDER]... [SOURCE...]. Runs clang's analysis
on every source that has a guarded member or includes a header with one, or on the given ones. Needs libclang's Python
module (pip install libclang); exits with 77 (skipped) without it, with 1 if there are findings. A source whose headers
are not on this machine (a vendor's, libtorch's without --torch) is listed and skipped.

libstdc++'s mutexes and locks have no attributes, so clang reads a copy of their headers to which this script adds them.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile

TOPS = ["platform", "backends", "core", "trainer"]
HEADER = "platform/base/thread_safety.hpp"
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
ACQUIRE, RELEASE = "__attribute__((acquire_capability({})))", "__attribute__((release_capability({})))"
SHARED = "__attribute__((acquire_shared_capability({})))"
RELEASE_ANY = "__attribute__((release_generic_capability({})))"
RELEASE_SHARED = "__attribute__((release_shared_capability({})))"
TRY = "__attribute__((try_acquire_capability(true)))"
CAPABILITY, SCOPED = '__attribute__((capability("mutex")))', "__attribute__((scoped_lockable))"
# Header of libstdc++ -> (class, attribute of the class, [(declarator, attribute after it), ...]), ...
ANNOTATED = {
    "bits/std_mutex.h": [
        ("class mutex :", CAPABILITY, [("lock()", ACQUIRE.format("")), ("try_lock() noexcept", TRY),
                                       ("unlock()", RELEASE.format(""))]),
        ("class lock_guard\n", SCOPED, [("explicit lock_guard(mutex_type& __m)", ACQUIRE.format("__m")),
                                        ("~lock_guard()", RELEASE.format(""))]),
    ],
    "bits/unique_lock.h": [
        ("class unique_lock\n", SCOPED, [("explicit unique_lock(mutex_type& __m)", ACQUIRE.format("__m")),
                                         ("unique_lock(mutex_type& __m, try_to_lock_t)", ACQUIRE.format("__m")),
                                         ("~unique_lock()", RELEASE.format("")),
                                         ("      lock()", ACQUIRE.format("")), ("      unlock()", RELEASE.format(""))]),
    ],
    "shared_mutex": [
        ("class shared_mutex\n", CAPABILITY,
         [(" lock()", ACQUIRE.format("")), (" unlock()", RELEASE.format("")), (" lock_shared()", SHARED.format("")),
          (" unlock_shared()", RELEASE_SHARED.format(""))]),
        ("class shared_lock\n", SCOPED, [("shared_lock(mutex_type& __m)", SHARED.format("__m")),
                                         ("~shared_lock()", RELEASE_ANY.format(""))]),
    ],
}


def read(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def annotate(text, changes):
    """Returns the |text| of a header with the attributes; raises ValueError if it does not look as expected."""
    for name, attribute, members in changes:
        begin = text.find(name)
        if begin < 0:
            raise ValueError(f"no {name.strip()!r}")
        keyword, rest = name.split(" ", 1)
        text = text[:begin] + f"{keyword} {attribute} {rest}" + text[begin + len(name):]
        for declarator, behind in members:
            at = text.find(declarator, begin)
            if at < 0:
                raise ValueError(f"no {declarator.strip()!r} in {name.strip()!r}")
            at += len(declarator)
            text = text[:at] + " " + behind + text[at:]
    return text


def system_includes():
    """Returns the folders in which the system's compiler looks for <...>."""
    done = subprocess.run(["c++", "-x", "c++", "-E", "-v", os.devnull], stderr=subprocess.PIPE,
                          stdout=subprocess.DEVNULL, text=True, check=True)
    listed = done.stderr.split("#include <...> search starts here:")[1].split("End of search list")[0]
    return [line.strip() for line in listed.splitlines() if line.strip()]


def write_annotated(folder, includes):
    for name, changes in ANNOTATED.items():
        original = next(path for path in (os.path.join(base, name) for base in includes) if os.path.exists(path))
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(annotate(read(original), changes))


def headers_of(root, path):
    """Returns the files of the tree that |path| includes."""
    for name in INCLUDE.findall(read(os.path.join(root, path))):
        beside = os.path.normpath(os.path.join(os.path.dirname(path), name))
        yield from [each for each in (beside, name) if os.path.isfile(os.path.join(root, each))][:1]


def sources(root):
    """Returns the sources with a guarded member, in themselves or in a header that they include."""
    for top in TOPS:
        for folder, folders, files in os.walk(os.path.join(root, top)):
            folders.sort()
            for name in sorted(files):
                path = os.path.relpath(os.path.join(folder, name), root)
                if name.endswith(".cpp") and not name.endswith("_test.cpp"):
                    headers = list(headers_of(root, path))
                    if HEADER in headers or any(HEADER in headers_of(root, each) for each in headers):
                        yield path


def check(root, chosen, flags, cindex):
    """Prints the findings; returns (files analysed, files skipped, findings)."""
    index, analysed, left_out, complaints = cindex.Index.create(), 0, [], set()
    for path in chosen:
        unit = index.parse(os.path.join(root, path), args=flags)
        errors = [each for each in unit.diagnostics if each.severity >= cindex.Diagnostic.Error]
        if errors:
            left_out.append(f"{path}: {errors[0].location.file}:{errors[0].location.line}: {errors[0].spelling}")
            continue
        analysed += 1
        for each in unit.diagnostics:
            if "thread-safety" in (each.option or ""):
                place = os.path.relpath(each.location.file.name, root)
                complaints.add(f"{place}:{each.location.line}: {each.spelling}")
    return analysed, left_out, sorted(complaints)


def main(arguments):
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("source", nargs="*")
    parser.add_argument("--torch", help="the torch folder of site-packages")
    parser.add_argument("--include", action="append", default=[], help="where generated headers are")
    given = parser.parse_intermixed_args(arguments)
    try:
        from clang import cindex
    except ImportError:
        print("check_thread_safety: skipped, there is no libclang; pip install libclang brings it")
        return 77
    root = os.path.abspath(given.root)
    includes = system_includes()
    scratch = tempfile.mkdtemp()
    try:
        write_annotated(scratch, includes)
        flags = ["-std=c++20", "-x", "c++", "-Wno-everything", "-Wthread-safety", "-nostdinc", "-I" + root]
        flags += ["-isystem", scratch]
        if given.torch:
            flags += ["-isystem", given.torch + "/include", "-DAT_PER_OPERATOR_HEADERS", "-DFMT_HEADER_ONLY=1",
                      "-isystem", given.torch + "/include/torch/csrc/api/include"]
        flags += [flag for folder in given.include for flag in ("-isystem", folder)]
        flags += [flag for folder in includes for flag in ("-isystem", folder)]
        analysed, left_out, complaints = check(root, given.source or list(sources(root)), flags, cindex)
    finally:
        shutil.rmtree(scratch)
    for line in left_out:
        print("left out: " + line)
    for line in complaints:
        print("error: " + line, file=sys.stderr)
    print(f"check_thread_safety: {analysed} sources, {len(left_out)} left out, {len(complaints)} complaints")
    return 1 if complaints or not analysed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
