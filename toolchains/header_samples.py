#!/usr/bin/env python3
"""Extracts the code samples in the comments of headers to sources, so that the build compiles them.

Usage: header_samples.py ROOT OUTPUT. Writes OUTPUT/samples.cpp, and OUTPUT/samples_torch.cpp with the samples of
headers that need libtorch. A sample is the indented lines of a // comment after one of these:

    // Example:                                      the body of a function in the header's namespace
    // Example, given ModelArgs args, int64_t rank:  the same, with these parameters
    // Example at file scope:                        outside of any function and namespace
    // Example file symbols.inc:                     a file that a sample of the same header includes

It ends at the first line that is not indented by three spaces. Its #include lines are moved to the top; "// ..." marks
omissions. Exits with 1 if a comment has a statement that is not part of a sample, and lists all of them; with 2 if
there is no sample at all. Files are written only if they change.
"""

import os
import re
import sys

TOPS = ["platform", "core", "trainer"]
COMMENT = re.compile(r"^\s*//(.*)$")
MARK = re.compile(r"^ Example(?P<where> at file scope| file (?P<file>[\w.]+))?(?:, given (?P<given>.+))?:$")
UNFINISHED_MARK = re.compile(r"^ Example, given .*,$")  # continues on the next line
STATEMENT = re.compile(r"^ {3,}(.*[\w>]\(.*\)|.*\});\s*(//.*)?$")  # prose has a space before a parenthesis
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]')
NAMESPACE = re.compile(r"^namespace (concord[\w:]*) \{", re.MULTILINE)
LIBTORCH = re.compile(r"(torch|ATen|c10)/")


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def headers(root):
    for top in TOPS:
        for folder, folders, files in os.walk(os.path.join(root, top)):
            folders.sort()
            for name in sorted(files):
                if name.endswith((".h", ".hpp")):
                    yield os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/")


class Sample:
    def __init__(self, header, line, match):
        self.header, self.line = header, line
        self.where, self.file, self.given = match["where"] or "", match["file"], match["given"] or ""
        self.lines, self.namespace = [], "concord"


def samples_of(header, text):
    """Returns (samples, errors) of a header."""
    samples, complaints, current, begun = [], [], None, ""
    for number, line in enumerate(text.splitlines(), start=1):
        comment = COMMENT.match(line)
        inside = comment[1] if comment else None
        if current is not None and inside is not None and inside.startswith("   "):
            current.lines.append(inside[3:])
            continue
        current = None
        if inside is None:
            begun = ""
            continue
        if begun or UNFINISHED_MARK.match(inside):
            begun = begun + inside if not begun or inside.endswith((",", ":")) else ""
        mark = MARK.match(begun or inside)
        if mark:
            current, begun = Sample(header, number + 1, mark), ""
            samples.append(current)
        elif STATEMENT.match(inside):
            complaints.append(f"{header}:{number}: code in a comment that is not compiled; put `// Example:` before it")
    complaints += [f"{header}:{each.line - 1}: the example has no lines" for each in samples if not each.lines]
    namespace = NAMESPACE.search(text)
    for sample in samples:
        sample.namespace = namespace[1] if namespace else "concord"
    return samples, complaints


def is_torch(root, name, known):
    """Returns whether the header |name| belongs to libtorch, or to the tree and includes one of libtorch."""
    return bool(LIBTORCH.match(name)) or os.path.isfile(os.path.join(root, name)) and needs_torch(root, name, known)


def needs_torch(root, header, known):
    """Returns whether |header| includes one of libtorch, directly or through others of the tree."""
    if header not in known:
        known[header] = False  # while it is looked at
        found = [match[1] for match in map(INCLUDE.match, read(os.path.join(root, header)).splitlines()) if match]
        known[header] = any(is_torch(root, name, known) for name in found)
    return known[header]


def source_of(root, samples, own_files):
    """Returns one translation unit with all of |samples|; |own_files| stay where they are included."""
    includes = [f'#include "{header}"' for header in dict.fromkeys(sample.header for sample in samples)]
    bodies = []
    for number, sample in enumerate(samples):
        lines = []
        for line in sample.lines:
            include = INCLUDE.match(line)
            hoisted = include and include[1] not in own_files
            if hoisted:
                includes.append(line.strip())
            lines.append("" if hoisted else line)
        place = [f'#line {sample.line} "{os.path.join(root, sample.header)}"']
        if sample.where:
            bodies += place + lines
        else:
            bodies += [f"namespace {sample.namespace}::sample_{number} {{"]
            bodies += [f"[[maybe_unused]] void sample({sample.given}) {{"] + place + lines + ["}", "}"]
    return "\n".join(["// Made by toolchains/header_samples.py."] + list(dict.fromkeys(includes)) + bodies) + "\n"


def write_if_changed(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if not os.path.exists(path) or read(path) != text:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


def main(arguments):
    if len(arguments) != 2 or not os.path.isdir(arguments[0]):
        print("usage: header_samples.py ROOT OUTPUT", file=sys.stderr)
        return 2
    root, output = arguments
    samples, complaints = [], []
    for header in headers(root):
        more, wrong = samples_of(header, read(os.path.join(root, header)))
        samples += more
        complaints += wrong
    for line in complaints:
        print(f"error: {line}", file=sys.stderr)
    if not samples:
        print(f"header_samples: no header below {root} has an example", file=sys.stderr)
        return 2
    known, plain, torch = {}, [], []
    for sample in samples:
        if sample.file:
            write_if_changed(os.path.join(output, sample.file), "\n".join(sample.lines) + "\n")
        else:
            names = [sample.header] + [match[1] for match in map(INCLUDE.match, sample.lines) if match]
            uses = any(is_torch(root, name, known) for name in names)
            (torch if uses else plain).append(sample)
    files = {sample.file for sample in samples if sample.file}
    for name, chosen in (("samples.cpp", plain), ("samples_torch.cpp", torch)):
        write_if_changed(os.path.join(output, name), source_of(root, chosen, files))
    print(f"header_samples: {len(plain) + len(torch)} samples, {len(torch)} of them with libtorch")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
