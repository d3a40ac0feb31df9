#!/usr/bin/env python3
"""Trains for thousands of steps, with saves and evaluations, and fails if a rank's memory grows with them.

usage: soak.py PROGRAM MODEL_FOLDER [STEPS]

Memory is the private memory of a rank's process (RssAnon): its maximum in the run's third sixth, when caches are
filled, and in its last. A leak of one store key per save, or of one small tensor per step, is far above the limit.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

MOST_KB_PER_1000_STEPS = 20
# Allocators return memory in blocks of this size, so a difference of one block is not significant.
BLOCK_KB = 132


def ranks(marker):
    """Returns the ranks of the job, each with its start time: their command lines contain its folder and they have a
    RANK. So has the process from which the launcher forks them; /proc shows its environment for them, so RANK there
    is not their own."""
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            is_rank = (marker.encode() in (process / "cmdline").read_bytes() and
                       b"\0RANK=" in b"\0" + (process / "environ").read_bytes() and
                       (process / "comm").read_text().strip() != "concord-zygote")
            if is_rank:
                found.append((int((process / "stat").read_text().rsplit(")", 1)[1].split()[19]), process))
        except OSError:
            continue  # it has exited meanwhile
    return found


def anonymous_kb(process):
    for line in (process / "status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    raise RuntimeError(f"{process} has no RssAnon")


def last_step(metrics):
    try:
        lines = metrics.read_text().splitlines()
        return json.loads(lines[-1])["step"] if lines else 0
    except (OSError, ValueError):
        return 0


def main():
    program, model = sys.argv[1:3]
    steps = int(sys.argv[3]) if len(sys.argv) > 3 else 12000
    with tempfile.TemporaryDirectory(prefix="concord-soak-") as folder:
        data = pathlib.Path(folder, "data.jsonl")
        data.write_text("".join(json.dumps({"input_ids": [(i * 31 + t * 7) % 300 for t in range(16)]}) + "\n" for i in range(256)))
        output = pathlib.Path(folder, "out")
        command = [program, "train", "--nproc", "2", "--model", model, "--train_data", str(data), "--eval_data", str(data),
                   "--eval_strategy", "steps", "--eval_steps", str(steps // 12), "--output_dir", str(output),
                   "--max_steps", str(steps), "--per_device_train_batch_size", "1", "--logging_steps", "100",
                   "--save_steps", "100", "--save_total_limit", "1", "--learning_rate", "1e-4"]
        job = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
        samples = {}  # (start time, process) -> [(step, kB)]
        while job.poll() is None:
            step = last_step(output / "metrics.jsonl")
            for started, process in ranks(str(output)):
                try:
                    samples.setdefault((started, process), []).append((step, anonymous_kb(process)))
                except (OSError, RuntimeError):
                    pass
            time.sleep(0.5)
        if job.returncode != 0:
            sys.exit(f"soak: the job ended with {job.returncode}")
    # The process that ranks are forked from has no distinct name before it is ready: it is seen only at the start.
    samples = {rank: seen for rank, seen in samples.items() if seen[-1][0] >= steps // 3}
    failed = len(samples) != 2
    for rank, (_, seen) in enumerate(sorted(samples.items())):  # the launcher starts them in the order of their ranks
        # The maximum of a window: evaluations and saves free memory for a moment, and the end frees all of it.
        begin, first = max((kb, step) for step, kb in seen if steps // 3 <= step < steps // 2)
        end, last = max((kb, step) for step, kb in seen if 5 * steps // 6 <= step < steps)
        growth = (end - begin) * 1000 / max(1, last - first)
        limit = MOST_KB_PER_1000_STEPS + BLOCK_KB * 1000 / max(1, last - first)
        print(f"soak: rank {rank}: {begin} kB at step {first}, {end} kB at step {last}: {growth:.1f} kB per 1,000 steps (limit {limit:.1f})")
        failed |= growth > limit
    sys.exit("soak: failed" if failed else 0)


if __name__ == "__main__":
    main()
