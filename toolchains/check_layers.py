#!/usr/bin/env python3
"""Checks that no include goes against the arrows, and that no file or folder is too large.

    trainer -> core -> platform/{bridge,cpp,loader,layers} -> platform/abi <- platform/sdk <- backends

and all of them, except platform/abi, -> platform/base. Inside core and trainer each folder has its own arrows, which
form no cycle.

Usage: check_layers.py ROOT. Prints one line for each include, file or folder that violates a rule and exits with 1;
with 2 if there was nothing to read or the table has a cycle. The rules are the tables below; check_layers_test.py shows
each of them failing.
"""

import os
import re
import sys

# Part of the tree -> the parts that its files may include in addition to their own. "trainer" is the files directly in
# this folder and its LOOP_ROOMS.
BASE = "platform/base"  # uses only the operating system and the compiler: for every layer except the C contract
# One library, whose parts may include each other.
HOST = ["platform/bridge", "platform/cpp", "platform/loader", "platform/layers"]
PLATFORM = HOST + ["platform/abi", BASE]
ARROWS = {
    "platform/abi": [],
    BASE: [],
    "platform/sdk": ["platform/abi", BASE],
    # The layers wrap tables and so share the argument checks that plugins use.
    **{part: HOST + ["platform/abi", "platform/sdk", BASE] for part in HOST},
    "platform/conformance": HOST + ["platform/abi", "platform/sdk", BASE],
    "core/base": [BASE],
    "core/schedule": ["core/base"],
    "core/safetensors": ["core/base", *PLATFORM],
    "core/torch": PLATFORM,
    "core/mesh": ["core/base", "core/torch", *PLATFORM],
    "core/launch": ["core/base", "core/mesh", BASE],
    "core/ops": ["core/base", "core/mesh", "core/torch", *PLATFORM],
    "core/parallel": ["core/base", "core/mesh", "core/ops", "core/torch", *PLATFORM],
    "core/checkpoint": ["core/base", "core/mesh", "core/parallel", "core/safetensors", "core/torch", *PLATFORM],
    "core/models": ["core/base", "core/checkpoint", "core/mesh", "core/ops", "core/parallel", "core/safetensors",
                    "core/schedule", "core/torch", *PLATFORM],
    "core/data_parallel": ["core/base", "core/mesh", "core/ops", "core/parallel", "core/torch", *PLATFORM],
    "core/optim": ["core/base", "core/checkpoint", "core/data_parallel", "core/mesh", "core/ops", "core/parallel",
                   "core/safetensors", "core/torch", *PLATFORM],
    "core/pipeline": ["core/base", "core/mesh", "core/models", "core/ops", "core/schedule", "core/torch", *PLATFORM],
    "trainer/report": ["core/base", BASE],
    "trainer/data": ["core/base", "core/models", "core/safetensors", BASE],
    # Only the options of core's tensor folders, which are plain values.
    "trainer/arguments": ["trainer/data", "core/base", "core/data_parallel", "core/mesh", "core/models", "core/optim",
                          "core/pipeline", "core/schedule", BASE],
    "trainer/trackers": ["trainer/arguments", "trainer/data", "trainer/report", "core/base", BASE],
    # The loop and its rooms (LOOP_ROOMS), which may include each other.
    "trainer": ["trainer/arguments", "trainer/data", "trainer/report", "trainer/trackers", "core/base", "core/checkpoint",
                "core/data_parallel", "core/mesh", "core/models", "core/optim", "core/parallel", "core/pipeline",
                "core/schedule", "core/torch", *PLATFORM],
    "trainer/torch_module": ["trainer", "trainer/arguments", "trainer/data", "core/base", "core/checkpoint", "core/mesh",
                             "core/models", "core/ops", "trainer/report", *PLATFORM],
    "trainer/python": ["trainer", "trainer/arguments", "trainer/cli", "trainer/report", "core/base", "core/mesh", "core/models",
                       "core/ops", "core/parallel", "core/torch", *PLATFORM],
    "trainer/cli": ["trainer", "trainer/arguments", "trainer/data", "trainer/report", "trainer/torch_module", "core/base",
                    "core/checkpoint", "core/data_parallel", "core/launch", "core/mesh", "core/models", "core/optim",
                    "core/safetensors", "core/schedule", *PLATFORM],
}
LOOP_ROOMS = ["checkpoint", "evaluation", "generation", "health", "metrics", "objective", "planning"]
# backends/<name>, each for itself: the contract, the author kit and the collective engines.
BACKEND_MAY = ["platform/abi", "platform/sdk", "backends/shm", "backends/net", BASE]
SIMULATOR = "backends/ascend/sim/"  # runs on the host's processor, so its streams are backends/cpu's

LIBTORCH = r"(torch|ATen|c10|caffe2)/"
# What is built without it: values, files and processes; and the program, which loads trainer/torch_module where a rank
# runs.
WITHOUT_LIBTORCH = ["core/base", "core/launch", "core/safetensors", "core/schedule", "trainer/arguments", "trainer/cli",
                    "trainer/report"]
# Headers from outside -> where they may be included, and what to say about it elsewhere.
OUTSIDE = [
    (r"(cuda|cublas|cudnn|curand|nccl|nvml|nvrtc|nvtx|nvToolsExt|cub/|thrust/|cooperative_groups)", ["backends/cuda"],
     "vendor headers stay inside backends/cuda"),
    (r"(ucp|ucs|uct)/", ["backends/net/ucx"], "UCX stays inside its module, backends/net/ucx"),
    (r"(acl/|aclnn|hccl|ascend|torch_npu/)", ["backends/ascend"], "vendor headers stay inside backends/ascend"),
    # A vendor's operator library computes on tensors; the simulated one is such a library.
    (LIBTORCH, ["core", "trainer", "backends/ascend/sim/opapi", "backends/ascend/torch/ops", "backends/cuda/torch/ops"],
     "libtorch is for core and trainer"),
]
# Headers that others compile against carry no type of a library that they would then need too.
PUBLIC = ["platform/abi", BASE, "platform/sdk", "platform/cpp"]
PRIVATE_LIBRARIES = r"(fmt|nlohmann|CLI|yaml-cpp|spdlog)/"
ABI_MAY_INCLUDE = ["stddef.h", "stdint.h"]

TOP = ["platform", "backends", "core", "trainer", "tests"]
SUFFIXES = (".h", ".hpp", ".c", ".cc", ".cpp", ".cu", ".cuh", ".inc", ".inl")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]', re.MULTILINE)
# Most lines of a header and of another source, tests excluded; most files of a folder, its folders not counted.
HEADERS = (".h", ".hpp", ".cuh")
HEADER_LINES, SOURCE_LINES, FOLDER_FILES = 200, 500, 40
FOLDERS = TOP + ["docs", "examples", "toolchains"]
DATA = ["docs/results", "tests/abi/v1_0", "tests/fuzz/corpus", "tests/golden"]
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


def part_of(path):
    """Returns the part of the tree that |path| (relative to the root) is in: 'core/mesh', 'platform/abi', 'trainer', 'tests'."""
    pieces = path.split("/")
    if pieces[0] == "trainer" and pieces[1] in LOOP_ROOMS:
        return "trainer"
    return pieces[0] if pieces[0] == "tests" else "/".join(pieces[:-1][:2])


def cycle_in(arrows):
    """Returns a cycle of |arrows| as a list of parts that ends with its first part; None if there is none."""
    done = set()

    def visit(part, path):
        if part in path:
            return path[path.index(part):] + [part]
        if part in done:
            return None
        done.add(part)
        for wanted in arrows.get(part, []):
            within_host = part in HOST and wanted in HOST
            found = None if within_host else visit(wanted, path + [part])
            if found:
                return found
        return None

    return next(filter(None, (visit(part, []) for part in arrows)), None)


def is_test(path):
    """Returns whether |path| is a test or a helper: below tests/, a folder testing/ or fake/, a backend's device/; or
    named x_test.*."""
    folder, name = os.path.split(path)
    return (path.startswith("tests/") or re.match(r"backends/\w+/device/", path)
            or {"testing", "fake"} & set(folder.split("/")) or os.path.splitext(name)[0].endswith("_test"))


def sources(root):
    for top in TOP:
        for folder, folders, files in os.walk(os.path.join(root, top)):
            folders.sort()
            for name in sorted(files):
                if name.endswith(SUFFIXES):
                    yield os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/")


def complaint_about_length(path, text):
    """Returns the error of a source with more lines than it may have; None if it is allowed."""
    lines, limit = text.count("\n"), HEADER_LINES if path.endswith(HEADERS) else SOURCE_LINES
    if is_test(path) or lines <= limit:
        return None
    return f"{path}: has {lines} lines, and may have {limit}; split it by concept"


def complaints_about_folders(root):
    """Returns an error for each folder with more files than it may have. Hidden files and data do not count."""
    complaints = []
    for top in FOLDERS:
        for folder, folders, files in os.walk(os.path.join(root, top)):
            path = os.path.relpath(folder, root).replace(os.sep, "/")
            folders[:] = sorted(name for name in folders if name != "__pycache__" and f"{path}/{name}" not in DATA)
            count = sum(not name.startswith(".") for name in files)
            if count > FOLDER_FILES:
                complaints.append(f"{path}: has {count} files at one level, and may have {FOLDER_FILES}; divide it")
    return complaints


def resolve(root, path, header):
    """Returns |header| as a file of the tree, found like a compiler does: next to |path|, then from the root."""
    for base in (os.path.dirname(path), ""):
        candidate = os.path.normpath(os.path.join(base, header)).replace(os.sep, "/")
        if os.path.isfile(os.path.join(root, candidate)):
            return candidate
    return None


def complaint_inside(path, target):
    """Returns the error of |path| including |target|, a file of the tree; None if it is allowed."""
    if is_test(path):
        return None
    if is_test(target):
        return "only tests may include tests"
    source, wanted = part_of(path), part_of(target)
    if source == wanted:
        return None
    may = BACKEND_MAY if source.startswith("backends/") else ARROWS.get(source)
    if path.startswith(SIMULATOR):
        may = BACKEND_MAY + ["backends/cpu"]
    if may is None:
        return f"{source} is not in any layer; add it to toolchains/check_layers.py"
    if wanted in may:
        return None
    return f"{source} may include " + (", ".join(may) if may else "nothing else of the tree")


def complaint_outside(path, header):
    """Like complaint_inside(), for a header that is not in the tree."""
    source = part_of(path)
    if source == "platform/abi":
        return None if header in ABI_MAY_INCLUDE else "platform/abi includes only " + " and ".join(ABI_MAY_INCLUDE)
    if is_test(path):
        return None
    for pattern, places, words in OUTSIDE:
        if re.match(pattern, header) and not path.startswith(tuple(f"{place}/" for place in places)):
            return words
    if source in WITHOUT_LIBTORCH and re.match(LIBTORCH, header):
        return f"{source} is built without libtorch"
    if source in PUBLIC and re.match(PRIVATE_LIBRARIES, header):
        return f"{source} is public, and code that includes it would need this library"
    return None


def check(root):
    """Returns (number of files read, complaints)."""
    count, complaints = 0, []
    for path in sources(root):
        count += 1
        with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
            text = COMMENT.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), file.read())
        complaints += filter(None, [complaint_about_length(path, text)])
        for found in INCLUDE.finditer(text):
            header = found.group(2)
            target = resolve(root, path, header)
            words = complaint_inside(path, target) if target else complaint_outside(path, header)
            if words:
                line = text.count("\n", 0, found.start()) + 1
                complaints.append(f"{path}:{line}: includes {header}: {words}")
    return count, complaints + complaints_about_folders(root)


def main(arguments):
    if len(arguments) != 1 or not os.path.isdir(arguments[0]):
        print("usage: check_layers.py ROOT, where ROOT is the folder that contains platform/, core/, ...", file=sys.stderr)
        return 2
    cycle = cycle_in(ARROWS)
    if cycle:
        print("check_layers: the table has a cycle: " + " -> ".join(cycle), file=sys.stderr)
        return 2
    count, complaints = check(arguments[0])
    if count == 0:
        print(f"check_layers: no source file below {arguments[0]}; nothing was checked", file=sys.stderr)
        return 2
    for line in complaints:
        print(f"error: {line}", file=sys.stderr)
    print(f"check_layers: {count} files, {len(complaints)} errors")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
