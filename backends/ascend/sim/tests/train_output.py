#!/usr/bin/env python3
"""What `concord train` shows on the simulated CANN: the table of its work, the timeline with the devices' kernels, the
ranges that msprof would show, and replayed steps with the bits of launched ones.

Usage: train_output.py CONCORD CHECK..., with the checks report, timeline, ranges, replay. Needs the environment of the
tests sim_npu_*.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = sys.argv[1]


def train(folder, *arguments, environment=(), expect=0):
    """Returns the messages of a run of the built-in model on one device, with its output in |folder|."""
    words = [PROGRAM, "train", "--nproc", "1", "--output_dir", str(folder), "--overwrite_output_dir", "--report_to",
             "none", "--save_strategy", "no", "--logging_steps", "1", "--disable_tqdm", "true", *map(str, arguments)]
    done = subprocess.run(words, env={**os.environ, **dict(environment)}, capture_output=True, text=True, check=False)
    assert done.returncode == expect, f"{' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stderr


def check_report(folder):
    messages = train(folder / "table", "--max_steps", 2)
    table = messages[messages.index("[sim-npu] work by count"):].splitlines()
    assert table[0] == "[sim-npu] work by count (910B: 1.6 TB/s, 320 TFLOP/s, 5 us per launch)", table[0]
    assert table[1].split() == ["operator", "launches", "MB", "read", "MB", "written", "GFLOP", "ms"], table[1]
    rows = {line.split()[0]: line.split()[1:] for line in table[2:-1]}
    assert float(rows["aclnnMatmul"][3] if "aclnnMatmul" in rows else rows["aclnnMm"][3]) > 0, table
    assert table[-1].startswith("  total of "), table[-1]
    silent = train(folder / "silent", "--max_steps", 1, environment={"CONCORD_REPORT_WORK": "0"})
    assert "work by count" not in silent, silent

    slow = folder / "slow.txt"
    slow.write_text("name = slow\nmemory_bytes_per_second = 1e9\ncube_flops_per_second = 1e12\n"
                    "vector_bytes_per_second = 1e12\nlaunch_seconds = 1e-3\n")
    report = folder / "work.json"
    train(folder / "file", "--max_steps", 1,
          environment={"CONCORD_SIM_NPU_REPORT": report, "CONCORD_SIM_NPU_DEVICE_FILE": slow})
    work = json.loads(report.read_text())
    total = work["total"]
    assert work["device"].startswith("slow: "), work["device"]
    assert total["microseconds"] >= 1000 * total["launches"], total
    assert total["product_flops"] > 0, total

    unwritable = {"CONCORD_SIM_NPU_REPORT": folder / "no such folder" / "work.json"}
    messages = train(folder / "unwritable", "--max_steps", 1, environment=unwritable, expect=1)
    assert "CONCORD_SIM_NPU_REPORT: cannot write" in messages and "No such file" in messages, messages
    messages = train(folder / "wrong", "--max_steps", 1, environment={"CONCORD_SIM_NPU_DEVICE_FILE": report}, expect=2)
    assert "CONCORD_SIM_NPU_DEVICE_FILE" in messages, messages


def check_timeline(folder):
    train(folder / "run", "--max_steps", 4, "--profile", "true", "--profile_step_start", 2, "--profile_step_end", 4,
          "--replay_steps", "false")
    events = json.loads((folder / "run" / "profile" / "rank_0.json").read_text())["traceEvents"]
    steps = [each for each in events if each.get("cat") == "step"]
    assert [each["name"] for each in steps] == ["step 3", "step 4"], steps
    kernels = [each for each in events if each.get("cat") == "kernel"]
    names = {each["name"] for each in kernels}
    assert {"aclnnRmsNorm", "aclnnFlashAttentionScore"} <= names or len(names) > 10, names
    rows = {each["tid"]: each["args"]["name"] for each in events if each["name"] == "thread_name"}
    assert all(re.fullmatch(r"device \d+, stream \d+", rows[each["tid"]]) for each in kernels)
    # On the same axis as the host: the kernels of a step begin after the step, and the last ends soon after its end.
    begin, end = steps[0]["ts"], steps[-1]["ts"] + steps[-1]["dur"]
    assert all(begin - 1 <= each["ts"] and each["ts"] + each["dur"] <= end + 10e6 for each in kernels)
    in_steps = sum(1 for each in kernels if begin <= each["ts"] <= end)
    assert in_steps > 0.9 * len(kernels) > 50, (in_steps, len(kernels))
    layers = {"layers.0", "layers.1", "layers.0 backward", "layers.1 backward"}
    assert layers <= {each["name"] for each in events}, "no spans of layers"


def check_ranges(folder):
    file = folder / "ranges.txt"
    train(folder / "run", "--max_steps", 3, "--profile", "true", "--profile_step_start", 1, "--profile_step_end", 2,
          environment={"CONCORD_SIM_NPU_RANGES": file})
    open_ranges, names, parents = {}, [], {}
    for line in file.read_text().splitlines():
        kind, number, *text = line.split(" ", 2)
        if kind == "start":
            names.append(text[0])
            parents[text[0]] = list(open_ranges.values())
            open_ranges[number] = text[0]
        elif kind == "end":
            del open_ranges[number]
    assert not open_ranges, open_ranges
    assert names.count("step 2") == 1 and not any(name in names for name in ("step 1", "step 3")), names[:20]
    assert "step 2" in parents["layers.0"], parents["layers.0"]
    assert any(name.startswith("forward ") for name in parents["layers.0"]), parents["layers.0"]
    assert names.count("layers.0") == sum(name.startswith("forward ") for name in names), names[:50]
    # Backward runs on autograd's thread, the last layer first; the ranges of its operators lie in those of the layers.
    layers = [name for name in names if name.endswith(" backward")]
    assert layers == names.count("layers.0") * ["layers.1 backward", "layers.0 backward"], layers
    fused = [name for name in parents if "npu_fusion_attention_grad" in name]
    assert fused and "layers.0 backward" in parents[fused[0]], (fused, parents.get(fused[0] if fused else ""))


def losses(folder):
    return [(row["loss"], row["grad_norm"]) for row in map(json.loads, (folder / "metrics.jsonl").open())]


def check_replay(folder):
    arguments = ("--max_steps", 12, "--bf16", "true")
    launched = train(folder / "launched", *arguments, "--replay_steps", "false", environment={"CONCORD_LOG": "info"})
    assert "replayed from here on" not in launched, launched
    replayed = train(folder / "replayed", *arguments, environment={"CONCORD_LOG": "info"})
    assert "the passes of a step are recorded, and replayed from here on" in replayed, replayed
    assert losses(folder / "launched") == losses(folder / "replayed"), "other bits"


def main():
    checks = {"report": check_report, "timeline": check_timeline, "ranges": check_ranges, "replay": check_replay}
    for name in sys.argv[2:]:
        with tempfile.TemporaryDirectory() as folder:
            checks[name](Path(folder))
        print(f"[sim-npu] {name}: as expected")


if __name__ == "__main__":
    main()
