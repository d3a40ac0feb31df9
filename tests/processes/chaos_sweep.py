#!/usr/bin/env python3
"""Jobs survive faults: `concord chaos` with many seeds, over layouts and kinds of faults.

usage: chaos_sweep.py PROGRAM MODEL_FOLDER [--faults N] [--seed N] [--minutes M] [--spares]

Runs seed after seed until N faults have happened (or M minutes have passed, for a run by hand). Each has to end with
the result of the run without faults, to the last bit: every sample trained once. Afterwards no process of it may be
left and nothing in memory. A seed that fails is printed with the command that repeats it. The last line counts.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HANG_S = 900  # only ends a hang: a run takes ten to thirty seconds
STEPS, FAULTS = 60, 6
LAYOUTS = {
    "dp4": ["--nproc", "4"],
    "dp2_zero": ["--nproc", "2", "--gradient_accumulation_steps", "2", "--use_distributed_optimizer"],
    "tp2_dp2": ["--nproc", "4", "--gradient_accumulation_steps", "2", "--tensor_model_parallel_size", "2"],
    "pp2": ["--nproc", "2", "--gradient_accumulation_steps", "4", "--pipeline_model_parallel_size", "2"],
    "cp2": ["--nproc", "2", "--gradient_accumulation_steps", "4", "--context_parallel_size", "2"],
}
# A flipped bit is found by comparing replicas, and damage without one is not: bitflip and nan need data parallelism.
KINDS = {"dp4": "kill,stop,hang,delay,disconnect,disk,bitflip,nan", "dp2_zero": "kill,stop,hang,delay,disconnect,disk"}
OTHER_KINDS = "kill,stop,hang,delay,disconnect,disk"


def processes_with(text):
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and int(entry.name) != os.getpid() and text.encode() in (entry / "cmdline").read_bytes():
                found.append(entry.name)
        except OSError:
            pass  # it has ended
    return found


def run_seed(arguments, seed, folder, data):
    layout = list(LAYOUTS)[seed % len(LAYOUTS)]
    out, memory = folder / f"seed-{seed}", folder / "memory"
    memory.mkdir(exist_ok=True)
    words = [arguments.program, "chaos", "--json", "--seed", str(seed), "--faults", str(FAULTS),
             "--kinds", KINDS.get(layout, OTHER_KINDS), "--", "train", *LAYOUTS[layout],
             "--model", arguments.model, "--train_data", str(data), "--per_device_train_batch_size", "1",
             "--max_steps", str(STEPS), "--save_steps", "25", "--memory_checkpoint_steps", "5", "--check_replicas_steps", "1",
             "--max_restarts", "5", "--output_dir", str(out)]
    if arguments.spares:
        words += ["--spares", "2"]
    environment = dict(os.environ, OMP_NUM_THREADS="1", CONCORD_MEMORY_DIR=str(memory))
    try:
        run = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=HANG_S)
    except subprocess.TimeoutExpired:
        return layout, None, [f"it hangs: not ended after {HANG_S} s"], words
    problems = []
    report = None
    if run.returncode != 0:
        problems.append(f"exit code {run.returncode}: {run.stderr.strip()[-2000:]}")
    try:
        report = json.loads(run.stdout)
        if not report["identical"]:
            problems.append(f"differs: {report['differences']}")
    except ValueError:
        problems.append("no report")
    if left := processes_with(str(out)):
        problems.append(f"processes are left: {left}")
    if left := list(memory.iterdir()):
        problems.append(f"left in memory: {left}")
    if not problems:
        shutil.rmtree(out)
    return layout, report, problems, words


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--faults", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1, help="the first one")
    parser.add_argument("--minutes", type=float, default=0, help="0: no limit")
    parser.add_argument("--spares", action="store_true")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="chaos-sweep-"))
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps({"input_ids": [(7 * i + 3 * j) % 300 for j in range(16)]}) + "\n" for i in range(512)))
    begin, seed, failed = time.monotonic(), arguments.seed, 0
    faults, recoveries, seconds = 0, 0, []
    while faults < arguments.faults and (arguments.minutes == 0 or time.monotonic() - begin < 60 * arguments.minutes):
        layout, report, problems, words = run_seed(arguments, seed, folder, data)
        if report:
            faults += sum(fault["happened"] for fault in report["faults"])
            recoveries += report["recoveries"]
            seconds += [fault["training_seconds"] for fault in report["faults"] if fault["training_seconds"] is not None]
        failed += bool(problems)
        print(f"seed {seed} ({layout}): {'; '.join(problems) if problems else 'ok'}", flush=True)
        if problems:
            print("  " + " ".join(words), flush=True)
        seed += 1
    seconds.sort()
    median = f"{seconds[len(seconds) // 2]:.2f} s" if seconds else "-"
    print(f"{seed - arguments.seed} runs, {faults} faults, {recoveries} recoveries (median until training went on {median}), "
          f"{failed} runs failed")
    if failed == 0:
        shutil.rmtree(folder)
    else:
        print(f"their output is in {folder}")
    return 1 if failed else 0


sys.exit(main())
