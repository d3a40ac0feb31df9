#!/usr/bin/env python3
"""Tests that need what is missing are declared as skipped: skipped_tests_test.py SOURCE BUILD SCRATCH TORCH

Configures the project in SCRATCH as on a machine without nvcc, UCX, torch_npu and a Python for transformers, and compares its
tests with those of BUILD: none of their names may be absent.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys


def tests_of(folder):
    """Returns names, without shard numbers, with the reason for skipped ones. Checks of one program count by name."""
    listed = subprocess.run(["ctest", "--test-dir", folder, "--show-only=json-v1"], check=True, capture_output=True, text=True).stdout
    tests = {}
    for test in json.loads(listed)["tests"]:
        command = test.get("command", [])
        tests[re.sub(r"\.[0-9]+$", "", test["name"])] = command[4] if command[1:2] == ["-c"] and "exit 77" in command[2] else None
    checks = pathlib.Path(folder, "tests/parity/transformers.checks")
    if tests.keys() & {"transformers_checks"}:
        tests.pop("transformers_checks")
        tests.update((line.split("|")[0], None) for line in checks.read_text().splitlines())
    return tests


def configure(source, build, scratch, torch):
    generator = re.search(r"^CMAKE_GENERATOR:INTERNAL=(.*)$", pathlib.Path(build, "CMakeCache.txt").read_text(), re.MULTILINE)[1]
    shutil.rmtree(scratch, ignore_errors=True)
    environment = {key: value for key, value in os.environ.items() if key not in ("CONCORD_TORCH", "CONCORD_TORCH_NPU")}
    nothing = ["CONCORD_UCX_INCLUDE", "CONCORD_TORCH_NPU"]
    done = subprocess.run(["cmake", "-S", source, "-B", scratch, "-G", generator, "-DPLATFORM=cpu,ascend", "-DCMAKE_UNITY_BUILD=ON",
                           f"-DCONCORD_TORCH={torch}", "-DCONCORD_TRANSFORMERS_PYTHON=/nowhere/python",
                           *(f"-D{name}=" for name in nothing)], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr


def main():
    source, build, scratch, torch = sys.argv[1:]
    configure(source, build, scratch, torch)
    full, found = tests_of(build), tests_of(scratch)
    absent = sorted(full.keys() - found.keys())
    assert not absent, f"neither declared nor skipped where something is missing: {absent}"
    skipped = {name: reason for name, reason in found.items() if reason}
    for name, reason in {"net_test": "libucx-dev", "hosts.ShortLivedCommunicators": "libucx-dev", "cuda_unit_test": "nvcc",
                         "sim_npu_operators": "CONCORD_TORCH_NPU", "sim_npu_network.default": "CONCORD_TORCH_NPU",
                         "lora.ComputesAndTrainsAsPeft": "/nowhere/python", "random_models.both": "/nowhere/python"}.items():
        assert reason in (skipped.get(name) or ""), f"{name} is skipped because of {skipped.get(name)}, expected {reason}"
    name = "net_test"
    done = subprocess.run(["ctest", "--test-dir", scratch, "-R", f"^{name}$", "--output-on-failure"], capture_output=True, text=True)
    assert "(Skipped)" in done.stdout, done.stdout
    shutil.rmtree(scratch)
    print(f"{len(skipped)} of {len(found)} tests are skipped, each with its reason")


if __name__ == "__main__":
    main()
