#!/usr/bin/env python3
"""Jobs survive faults: `concord chaos` with many seeds, over layouts and kinds of faults, with and without spares.

usage: chaos_sweep.py PROGRAM MODEL_FOLDER [--faults N] [--seed N] [--minutes M] [--kinds K,...] [--layouts L,...]
                      [--steps N] [--faults_per_run N]

Runs seed after seed until N faults have happened (or M minutes have passed, for a manual run). Each must end with the
result of the run without faults, bitwise identical: every sample trained once. Afterwards no process of it and nothing
in memory may be left. Every fault must be detected, and the right rank reported if it can be determined. A seed that
fails is printed with the command that repeats it. The last lines are a table by kind.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

HANG_S = 1200  # only ends a hang: a run takes half a minute to some minutes
LAYOUTS = {
    "dp4": ["--nproc", "4"],
    "dp2_zero": ["--nproc", "2", "--gradient_accumulation_steps", "2", "--use_distributed_optimizer"],
    "tp2_dp2": ["--nproc", "4", "--gradient_accumulation_steps", "2", "--tensor_model_parallel_size", "2"],
    "pp2": ["--nproc", "2", "--gradient_accumulation_steps", "4", "--pipeline_model_parallel_size", "2"],
    "cp2": ["--nproc", "2", "--gradient_accumulation_steps", "4", "--context_parallel_size", "2"],
    "dp2": ["--nproc", "2", "--gradient_accumulation_steps", "2"],
}
# A flipped bit is found by comparing replicas, and damage without one is not (docs/faults.md): these need replicas.
NEED_REPLICAS = {"bitflip", "nan"}
REPLICATED = {"dp4", "tp2_dp2", "dp2"}
# Not detected if nothing is written or sent any longer: ranks of one machine share memory.
MAY_DO_NO_HARM = {"delay", "disconnect", "disk"}
KINDS = ["kill", "stop", "hang", "delay", "disconnect", "disk", "bitflip", "nan"]


def processes_with(text):
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and int(entry.name) != os.getpid() and text.encode() in (entry / "cmdline").read_bytes():
                found.append(entry.name)
        except OSError:
            pass  # it has exited
    return found


def must_name_the_rank(kind, layout):
    """Among four replicas the one that differs is known, among two it is not; a rank that is cut off or cannot write
    is not determined."""
    return kind in ("kill", "stop", "hang") or (kind in NEED_REPLICAS and layout == "dp4")


def wrong_outcomes(report, layout):
    wrong = []
    for fault in report["faults"]:
        if not fault["happened"] or fault["overtaken"]:
            continue
        named = fault["named_rank"]
        if fault["detected_seconds"] is None and fault["kind"] in MAY_DO_NO_HARM:
            continue
        if fault["detected_seconds"] is None or fault["training_seconds"] is None:
            wrong.append(f"not found or not recovered: {fault}")
        elif must_name_the_rank(fault["kind"], layout) and named != fault["rank"]:
            wrong.append(f"another rank is named: {fault}")
        elif fault["kind"] in NEED_REPLICAS and named not in (None, fault["rank"]):
            wrong.append(f"another rank is named: {fault}")
    return wrong


def run_seed(arguments, seed, folder, data):
    layout = arguments.layouts[seed % len(arguments.layouts)]
    spares = seed // len(arguments.layouts) % 2 * 2
    kinds = [kind for kind in arguments.kinds if layout in REPLICATED or kind not in NEED_REPLICAS]
    out, memory = folder / f"seed-{seed}", folder / "memory"
    memory.mkdir(exist_ok=True)
    words = [arguments.program, "chaos", "--json", "--seed", str(seed), "--faults", str(arguments.faults_per_run),
             "--kinds", ",".join(kinds), "--", "train", *LAYOUTS[layout],
             "--model", arguments.model, "--train_data", str(data), "--per_device_train_batch_size", "1",
             "--max_steps", str(arguments.steps), "--save_steps", "40", "--memory_checkpoint_steps", "5", "--check_replicas_steps", "1",
             "--max_restarts", "10", "--output_dir", str(out)]
    if spares:
        words += ["--spares", str(spares)]
    environment = dict(os.environ, OMP_NUM_THREADS="1", CONCORD_MEMORY_DIR=str(memory))
    name = f"{layout}{', spares' if spares else ''}"
    try:
        run = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=HANG_S)
    except subprocess.TimeoutExpired:
        return name, None, [f"it hangs: not ended after {HANG_S} s"], words
    problems = []
    report = None
    if run.returncode != 0:
        problems.append(f"exit code {run.returncode}: {run.stderr.strip()[-2000:]}")
    try:
        report = json.loads(run.stdout)
        if not report["identical"]:
            problems.append(f"differs: {report['differences']}")
        problems += wrong_outcomes(report, layout)
    except ValueError:
        problems.append("no report")
    if left := processes_with(str(out)):
        problems.append(f"processes are left: {left}")
    if left := list(memory.iterdir()):
        problems.append(f"left in memory: {left}")
    if spares and report:
        used = re.findall(r"(\d+) of \d+ ranks were spares", (out / "faults.log").read_text(errors="replace"))
        name += f": {sum(map(int, used))} became ranks"
    if not problems:
        shutil.rmtree(out)
    return name, report, problems, words


class Table:
    """The outcomes of all faults, by kind."""

    COLUMNS = ("faults", "overtaken", "harmless", "found", "right rank", "no rank", "recovered", "lost steps", "in equal runs")

    def __init__(self):
        self.counts = defaultdict(lambda: dict.fromkeys(self.COLUMNS, 0))
        self.seconds = defaultdict(lambda: ([], []))

    def add(self, report):
        for fault in report["faults"]:
            if not fault["happened"]:
                continue
            row = self.counts[fault["kind"]]
            row["faults"] += 1
            row["overtaken"] += fault["overtaken"]
            row["in equal runs"] += report["identical"]
            if fault["detected_seconds"] is None:
                row["harmless"] += not fault["overtaken"] and fault["kind"] in MAY_DO_NO_HARM
                continue
            row["found"] += 1
            row["right rank"] += fault["named_rank"] == fault["rank"]
            row["no rank"] += fault["named_rank"] is None
            row["recovered"] += fault["training_seconds"] is not None
            row["lost steps"] += fault["lost_steps"]
            for times, key in zip(self.seconds[fault["kind"]], ("detected_seconds", "training_seconds")):
                if fault[key] is not None:
                    times.append(fault[key])

    def total(self):
        return sum(row["faults"] for row in self.counts.values())

    def text(self):
        def times(values):
            values = sorted(values)
            return f"{values[len(values) // 2]:.2f} {values[-1]:.2f}" if values else "- -"

        lines = [["kind", *self.COLUMNS, "detected: median, worst", "training again: median, worst"]]
        for kind in sorted(self.counts):
            detected, training = self.seconds[kind]
            lines.append([kind, *map(str, self.counts[kind].values()), times(detected), times(training)])
        return "\n".join(" | ".join(line) for line in lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--faults", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1, help="the first one")
    parser.add_argument("--minutes", type=float, default=0, help="0: no limit")
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=KINDS)
    parser.add_argument("--layouts", type=lambda text: text.split(","), default=["dp4", "dp2_zero", "tp2_dp2", "pp2", "cp2"])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--faults_per_run", type=int, default=25)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="chaos-sweep-"))
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps({"input_ids": [(7 * i + 3 * j) % 300 for j in range(16)]}) + "\n" for i in range(512)))
    begin, seed, failed, table = time.monotonic(), arguments.seed, 0, Table()
    while table.total() < arguments.faults and (arguments.minutes == 0 or time.monotonic() - begin < 60 * arguments.minutes):
        name, report, problems, words = run_seed(arguments, seed, folder, data)
        if report:
            table.add(report)
        failed += bool(problems)
        what = "; ".join(problems) if problems else "ok"
        print(f"seed {seed} ({name}): {what} ({time.monotonic() - begin:.0f} s, {table.total()} faults)", flush=True)
        if problems:
            print("  " + " ".join(words), flush=True)
        seed += 1
    print(f"{table.text()}\n{seed - arguments.seed} runs, {table.total()} faults, {failed} runs failed")
    if failed == 0:
        shutil.rmtree(folder)
    else:
        print(f"their output is in {folder}")
    return 1 if failed else 0


sys.exit(main())
