"""Runs checks that compare with torch and transformers, each forked from one process that has imported them.

run_checks.py --results FILE --shard I/N NAME LIST

`import torch, transformers` takes 6 s of CPU time; a forked check has both already. Otherwise it runs as if alone: as
__main__, in a separate process and session. LIST has a line per check, NAME|COST|SCRIPT;ARGUMENT;..., and is divided
into N shards of about the same cost. Writes {"program", "tests": [{"name", "status", "seconds", "detail"}]} to FILE,
like toolchains/testing/run_test_program.py; a check that exits with 77 was skipped. Environment: CONCORD_TEST_FILTER, a regular
expression, runs only the checks that it matches.
"""

import argparse
import importlib
import json
import os
import pathlib
import re
import resource
import runpy
import signal
import sys
import tempfile
import time

# Modules that the checks import; torch.distributed.tensor, torch._dynamo and sympy come with the first model.
MODULES = ("torch", "transformers", "transformers.models.qwen2.modeling_qwen2", "peft", "safetensors.torch")
LIMIT = 900  # seconds: a hang ends the check; no verdict depends on it
SKIPPED = 77


def read_checks(path):
    checks = []
    for line in path.read_text().splitlines():
        name, cost, command = line.split("|")
        checks.append({"name": name, "cost": float(cost), "command": command.split(";")})
    return checks


def shard_of(checks, index, count):
    """Assigns the longest first, each to the shard with the least cost so far."""
    shards = [[] for _ in range(count)]
    for check in sorted(checks, key=lambda each: -each["cost"]):
        min(shards, key=lambda shard: sum(each["cost"] for each in shard)).append(check)
    return shards[index]


def preload():
    for name in MODULES:
        try:
            importlib.import_module(name)
        except ImportError:
            pass  # the check that needs it reports this, and is skipped


def become(check, output):
    """In the child: runs the check's script like Python. Its exception or exit is the child's."""
    os.setsid()
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    sys.argv = check["command"]
    sys.path[0] = str(pathlib.Path(check["command"][0]).parent)
    runpy.run_path(check["command"][0], run_name="__main__")


def wait(pid):
    """Returns (the child's exit code or a negative signal, why it failed)."""
    deadline = time.monotonic() + LIMIT
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return code, f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        if time.monotonic() > deadline:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return -signal.SIGKILL, f"hangs: killed after the time limit of {LIMIT} s"
        time.sleep(0.02)


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(check, output):
    """Returns the result of |check|. Prints the output of a failed one."""
    begin, used = time.monotonic(), cpu_seconds()
    pid = os.fork()
    if pid == 0:
        become(check, output)
        sys.exit()
    code, reason = wait(pid)
    output.seek(0)
    text = output.read().decode(errors="replace")
    status = "pass" if code == 0 else "skip" if code == SKIPPED else "fail"
    detail = {"pass": "", "skip": (text.splitlines() or ["no reason given"])[-1], "fail": reason}[status]
    if status == "fail":
        print(text)
    seconds = time.monotonic() - begin
    print(f"{check['name']}: {status} after {seconds:.1f} s ({cpu_seconds() - used:.1f} s of CPU time) {detail}", flush=True)
    return {"name": check["name"], "status": status, "seconds": seconds, "detail": detail}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", required=True, type=pathlib.Path)
    parser.add_argument("--shard", default="0/1")
    parser.add_argument("name")
    parser.add_argument("list", type=pathlib.Path)
    arguments = parser.parse_args()
    arguments.results.unlink(missing_ok=True)
    checks = shard_of(read_checks(arguments.list), *(int(each) for each in arguments.shard.split("/")))
    wanted = os.environ.get("CONCORD_TEST_FILTER", "")
    checks = [each for each in checks if re.search(wanted, each["name"]) or re.search(wanted, f"{arguments.name}.{each['name']}")]
    if checks:
        preload()
    results = [run(check, tempfile.TemporaryFile()) for check in checks]
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    arguments.results.write_text(json.dumps({"program": arguments.name, "tests": results}))
    failed = [each["name"] for each in results if each["status"] == "fail"]
    print(f"{arguments.name}: {len(failed)} of {len(results)} failed{': ' if failed else ''}{', '.join(failed)}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
