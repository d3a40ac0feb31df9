#!/usr/bin/env python3
"""Injected failures of operators under torch_npu: each is reported, none is turned into values. Run again with
TASK_QUEUE_ENABLE 0, 1, 2 and ASCEND_LAUNCH_BLOCKING=1, which decide when the report comes."""

import os
import signal
import sys
import tempfile

import torch
import torch_npu

from simulator import Simulator

REPORTED = "reported"
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
    """Runs a case in a new process: after a failure on the stream the device is not usable. Returns its outcome."""
    simulator = Simulator()
    values = compute(simulator, "nothing@1=1")
    assert all(torch.equal(value, torch.full((8, 8), 8.0)) for value in values), values
    try:
        values = compute(simulator, rule)
    except RuntimeError as error:
        if words in str(error) or "Inner error" in str(error):  # then the details are in torch_npu's log
            return REPORTED
        return f"reported without '{words}': {error}"
    return f"NOT reported; the values were {values[1].flatten()[:4].tolist()}"


def in_child(rule, words):
    """Returns the outcome of a case. The verdict is what the child wrote, not how it ended: torch_npu's own thread meets
    the same failure and ends the process with an uncaught exception, before or after the main thread has it. A child that
    ends so without a verdict has to have named the failure, and has handed out no value."""
    with tempfile.TemporaryFile("w+") as verdict, tempfile.TemporaryFile("w+") as log:
        child = os.fork()  # before the device is used for the first time
        if child == 0:
            os.dup2(log.fileno(), 2)
            try:
                os.write(verdict.fileno(), run_case(rule, words).encode())
            except BaseException as error:
                os.write(verdict.fileno(), f"failed: {error!r}".encode())
            finally:
                os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        verdict.seek(0)
        log.seek(0)
        said, printed = verdict.read(), log.read()
    print(printed)
    if said:
        return said
    return REPORTED if code == -signal.SIGABRT and words in printed else f"ended with {code} and no verdict"


def main():
    verdicts = {rule: in_child(rule, words) for rule, words in FAILURES}
    for rule, verdict in verdicts.items():
        print(f"{rule}: {verdict}")
    return 1 if any(verdict != REPORTED for verdict in verdicts.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
