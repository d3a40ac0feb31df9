#!/usr/bin/env python3
"""Injected failures of operators under torch_npu: each is reported, none is turned into values. Run again with
TASK_QUEUE_ENABLE 0, 1, 2 and ASCEND_LAUNCH_BLOCKING=1, which decide when the report comes."""

import os
import sys

import torch
import torch_npu

from simulator import Simulator

# What is injected, and what the report has to name. An operator fails when it is called, or on its stream afterwards.
FAILURES = [
    ("aclnnMul@1=561000", "Mul"),
    ("aclnnMul@1=async:507015", "507015"),
    ("aclnnMul@3=async:507015", "507015"),
    ("aclnnInplaceCopy@1=async:507015", "507015"),
    ("aclrtMemcpyAsync@1=507000", "507000"),
]


def compute(simulator, rule):
    """Some work after whose failure a wrong value would show: the right one is 8 everywhere."""
    x = torch.full((64,), 2.0, device="npu")
    torch.npu.synchronize()
    simulator.set_faults(rule)
    y = x
    for _ in range(2):
        y = torch.mul(y, x)
    y = torch.mul(y, torch.ones(64, device="npu")).view(8, 8).t().contiguous()
    host = torch.empty(8, 8, pin_memory=True)
    host.copy_(y, non_blocking=True)
    torch.npu.synchronize()
    return [host, y.cpu()]


def run_case(rule, words):
    """In a process of its own: after a failure on the stream the device is not usable. Returns an exit code."""
    simulator = Simulator()
    values = compute(simulator, "nothing@1=1")
    assert all(torch.equal(value, torch.full((8, 8), 8.0)) for value in values), values
    try:
        values = compute(simulator, rule)
    except RuntimeError as error:
        if words in str(error) or "Inner error" in str(error):  # then the details are in torch_npu's log
            print(f"{rule}: reported")
            return 0
        print(f"{rule}: reported without '{words}': {error}")
        return 1
    print(f"{rule}: NOT reported; the values were {values[1].flatten()[:4].tolist()}")
    return 1


def in_child(rule, words):
    sys.stdout.flush()
    child = os.fork()  # before the device is used for the first time
    if child == 0:
        code = 1
        try:
            code = run_case(rule, words)
        finally:
            sys.stdout.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main():
    codes = {rule: in_child(rule, words) for rule, words in FAILURES}
    print("failures.py: exit codes:", codes)
    return 1 if any(codes.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
