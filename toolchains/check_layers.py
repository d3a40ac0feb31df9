#!/usr/bin/env python3
"""Fails where an include goes against the arrows.

    trainer -> core -> platform/{cpp,loader,layers} -> platform/abi <- platform/sdk <- backends

Usage: check_layers.py ROOT. Prints one line for each include that breaks a rule and ends with 1; with 2 where there was
nothing to read. The rules are the tables below; check_layers_test.py shows each of them failing.
"""

import os
import re
import sys

# The part of the tree a file belongs to -> the parts it may include besides its own.
HOST = ["platform/cpp", "platform/loader", "platform/layers"]
ARROWS = {
    "platform/abi": [],
    "platform/sdk": ["platform/abi"],
    # The layers wrap tables and so share the argument checks that plugins use.
    **{part: HOST + ["platform/abi", "platform/sdk"] for part in HOST},
    "core": HOST + ["platform/abi"],
    "trainer": ["core"] + HOST + ["platform/abi"],
}
# backends/<name>, each for itself: the contract, the author kit and the collective engine.
BACKEND_MAY = ["platform/abi", "platform/sdk", "backends/shm"]

LIBTORCH = r"(torch|ATen|c10|caffe2)/"
# The program, which starts without libtorch and loads trainer/torch_module where a rank runs.
WITHOUT_LIBTORCH = ["trainer/cli"]
# Headers from outside -> where they may be included, and what to say about it elsewhere.
OUTSIDE = [
    (r"(cuda|cublas|cudnn|curand|nccl|nvml|nvrtc|nvtx|nvToolsExt|cub/|thrust/|cooperative_groups)", ["backends/cuda"],
     "vendor headers stay inside backends/cuda"),
    (r"(acl/|aclnn|hccl|ascend|torch_npu/)", ["backends/ascend"], "vendor headers stay inside backends/ascend"),
    # A vendor's operator library computes on tensors; the simulated one is such a library.
    (LIBTORCH, ["core", "trainer", "backends/ascend/sim/opapi", "backends/ascend/torch/ops",
                                      "backends/cuda/torch/ops"],
     "libtorch is for core and trainer"),
]
# Headers that others compile against carry no type of a library that they would then need too.
PUBLIC = ["platform/abi", "platform/sdk", "platform/cpp"]
PRIVATE_LIBRARIES = r"(fmt|nlohmann|CLI|yaml-cpp|spdlog)/"
ABI_MAY_INCLUDE = ["stddef.h", "stdint.h"]

TOP = ["platform", "backends", "core", "trainer", "tests"]
SUFFIXES = (".h", ".hpp", ".c", ".cc", ".cpp", ".cu", ".cuh", ".inc", ".inl")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]', re.MULTILINE)
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


def part_of(path):
    """The part of the tree |path| (relative to the root) belongs to: 'core', 'platform/abi', 'backends/cpu', 'tests'."""
    pieces = path.split("/")
    return "/".join(pieces[:2]) if pieces[0] in ("platform", "backends") else pieces[0]


def is_test(path):
    """Tests and helpers: below tests/, a folder testing/ or fake/, a backend's device/; or named x_test.* or test_x.*."""
    folder, name = os.path.split(path)
    return (path.startswith("tests/") or re.match(r"backends/\w+/device/", path)
            or {"testing", "fake"} & set(folder.split("/")) or name.startswith("test_")
            or os.path.splitext(name)[0].endswith("_test"))


def sources(root):
    for top in TOP:
        for folder, folders, files in os.walk(os.path.join(root, top)):
            folders.sort()
            for name in sorted(files):
                if name.endswith(SUFFIXES):
                    yield os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/")


def resolve(root, path, header):
    """|header| as a file of the tree, found as the compiler does: next to the including file, then from the root."""
    for base in (os.path.dirname(path), ""):
        candidate = os.path.normpath(os.path.join(base, header)).replace(os.sep, "/")
        if os.path.isfile(os.path.join(root, candidate)):
            return candidate
    return None


def complaint_inside(path, target):
    """What is wrong with |path| including |target|, a file of the tree; None where it is fine."""
    if is_test(path):
        return None
    if is_test(target):
        return "only tests may include tests"
    source, wanted = part_of(path), part_of(target)
    if source == wanted:
        return None
    may = BACKEND_MAY if source.startswith("backends/") else ARROWS.get(source)
    if may is None:
        return f"{source} is not in any layer; add it to toolchains/check_layers.py"
    if wanted in may:
        return None
    return f"{source} may include " + (", ".join(may) if may else "nothing else of the tree")


def complaint_outside(path, header):
    """The same for a header that is not in the tree."""
    source = part_of(path)
    if source == "platform/abi":
        return None if header in ABI_MAY_INCLUDE else "platform/abi includes only " + " and ".join(ABI_MAY_INCLUDE)
    if is_test(path):
        return None
    for pattern, places, words in OUTSIDE:
        if re.match(pattern, header) and source not in places and os.path.dirname(path) not in places:
            return words
    if os.path.dirname(path) in WITHOUT_LIBTORCH and re.match(LIBTORCH, header):
        return "the program links no libtorch; code that needs it belongs in trainer/torch_module"
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
        for found in INCLUDE.finditer(text):
            header = found.group(2)
            target = resolve(root, path, header)
            words = complaint_inside(path, target) if target else complaint_outside(path, header)
            if words:
                line = text.count("\n", 0, found.start()) + 1
                complaints.append(f"{path}:{line}: includes {header}: {words}")
    return count, complaints


def main(arguments):
    if len(arguments) != 1 or not os.path.isdir(arguments[0]):
        print("usage: check_layers.py ROOT, where ROOT is the folder that contains platform/, core/, ...", file=sys.stderr)
        return 2
    count, complaints = check(arguments[0])
    if count == 0:
        print(f"check_layers: no source file below {arguments[0]}; nothing was checked", file=sys.stderr)
        return 2
    for line in complaints:
        print(f"error: {line}", file=sys.stderr)
    print(f"check_layers: {count} files, {len(complaints)} includes against the arrows")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
