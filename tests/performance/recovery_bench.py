#!/usr/bin/env python3
"""The time without training after kill -9 of one of four ranks, compared with torchrun; see recovery_bench.cmake.

usage: recovery_bench.py PROGRAM PLUGINS MODEL_FOLDER [part of a name] [--json]

Jobs alternate: ours, ours with four spares, torchrun's. In each, ranks 1, 3 and 0 are killed one after the other, and
all resume from an in-memory checkpoint of at most five steps before. The time is from the kill until all ranks have
done a step; rows have the medians.

torchrun runs with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1. Without it, torch 2.13 gives the workers of a new attempt the
store of the previous one without a separate prefix: gloo finds the addresses of dead workers there and does not connect
("Connection refused", see pytorch issue 135712), so that training never continues.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROUNDS, GOAL_S, LIMIT_S = 3, 2.0, 600
NAMES = {"plain": "kill -9 of one of 4 ranks until training goes on", "spares": "the same with --spares 4"}


def gaps(log):
    """Returns the seconds from each kill to the next step of all ranks."""
    events = sorted((json.loads(line) for line in log.read_text().splitlines()), key=lambda event: event["time"])
    found, since = [], None
    for event in events:
        if event["event"] == "fault":
            since = event["time"]
        elif event["event"] == "training" and since is not None:
            found.append(event["time"] - since)
            since = None
    return found


def run(words, environment, folder):
    with open(folder / "output.txt", "w", encoding="utf-8") as output:
        done = subprocess.run(words, env=dict(os.environ, OMP_NUM_THREADS="1", **environment), stdout=output,
                              stderr=subprocess.STDOUT, timeout=LIMIT_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{words[0]} ended with {done.returncode}: {(folder / 'output.txt').read_text()[-2000:]}")


def ours(program, plugins, model, folder, spares):
    data, log = folder / "data.jsonl", folder / "log.jsonl"
    data.write_text("".join(json.dumps({"input_ids": [(7 * i + 3 * j) % 300 for j in range(16)]}) + "\n" for i in range(512)))
    words = [program, "train", "--nproc", "4", "--model", model, "--train_data", str(data), "--per_device_train_batch_size", "1",
             "--max_steps", "1000", "--save_strategy", "no", "--logging_steps", "100", "--max_restarts", "3",
             "--memory_checkpoint_steps", "5", "--output_dir", str(folder / "out"), *(["--spares", "4"] if spares else [])]
    run(words, {"CONCORD_FAULTS": "kill:1@300+0,kill:3@600+0,kill:0@900+0", "CONCORD_RECOVERY_LOG": str(log),
                "CONCORD_PLUGIN_PATH": plugins}, folder)
    return gaps(log)


def torchrun(python, folder):
    log = folder / "log.jsonl"
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        words = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", "--max-restarts", "3",
                 "--monitor-interval", "0.1", str(Path(__file__).parent / "peers" / "recovery_peer.py"), str(log),
                 memory + "/checkpoint.pt", "300", "1@60,3@160,0@250"]
        run(words, {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}, folder)
    return gaps(log)


def row(name, own, peer, goal):
    median, other = statistics.median(own), statistics.median(peer) if peer else None
    return {"name": name, "ours": median, "peer": other, "unit": "s", "ratio": other / median if peer else None, "goal": goal,
            "met": median <= goal}


def main():
    program, plugins, model, *rest = sys.argv[1:]
    options = [word for word in rest if word.startswith("--")]
    part = next((word for word in rest if not word.startswith("--")), "")
    if set(options) - {"--json"}:
        sys.exit(2)
    if not any(part in name for name in NAMES.values()):
        print("[]")
        return
    python = os.environ.get("CONCORD_PYTHON", "")
    measured = {"plain": [], "spares": [], "torchrun": []}
    for _ in range(ROUNDS):
        jobs = {"plain": lambda folder: ours(program, plugins, model, folder, False),
                "spares": lambda folder: ours(program, plugins, model, folder, True)}
        if python:
            jobs["torchrun"] = lambda folder: torchrun(python, folder)
        for name, job in jobs.items():
            with tempfile.TemporaryDirectory() as folder:
                found = job(Path(folder))
            measured[name] += found
            print(f"{name}: {' '.join(f'{seconds:.2f}' for seconds in found)} s", file=sys.stderr, flush=True)
    rows = [row(NAMES[name], measured[name], measured["torchrun"], GOAL_S) for name in NAMES if part in NAMES[name]]
    if "--json" in options:
        print(json.dumps(rows, indent=1))
        return
    for each in rows:
        peer = "-" if each["peer"] is None else f"{each['peer']:.2f} s, {each['ratio']:.1f} times as long"
        print(f"{each['name']}: {each['ours']:.2f} s, goal <= {each['goal']:g} s {'met' if each['met'] else 'NOT MET'}; torchrun {peer}")


main()
