#!/usr/bin/env python3
"""concord.train compared with `concord train`, and its import with torch's; see python_bench.cmake.

usage: python_bench.py PROGRAM [part of a name] [--json]

Runs of the package and of the program alternate, with the same settings on one thread: a model of 1.05M parameters, 256
tokens per step. Other load only makes steps slower, so the row has the first percentile of the seconds of the steps of all
runs. Every other pair of runs begins with the program, so that a trend of the machine cancels.
"""

import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROUNDS, STEPS, WARM_UP = 10, 150, 20
STEP, IMPORT = "a step of concord.train at 1M parameters", "import concord, in addition to torch"
CONFIG = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 1024, "hidden_size": 128,
          "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
          "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
          "tie_word_embeddings": True}
IMPORTS = {"concord": "import torch, time; begin = time.perf_counter(); import concord; concord.train; "
                      "print(time.perf_counter() - begin)",
           "torch": "import time; begin = time.perf_counter(); import torch; print(time.perf_counter() - begin)"}


def step_seconds(words, folder):
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    tokens = [row["tokens"] for row in rows]
    seconds = [(now - before) / row["tokens_per_second"] for before, now, row in zip(tokens, tokens[1:], rows[1:], strict=False)]
    return seconds[WARM_UP:]


def steps(program):
    measured = {"concord": [], "program": []}
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        (folder / "config.json").write_text(json.dumps(CONFIG))
        (folder / "data.jsonl").write_text("".join(json.dumps({"input_ids": [(7 * i + j * j) % 1000 for j in range(64)]}) + "\n"
                                                   for i in range(64)))
        settings = {"model_config": folder / "config.json", "train_data": folder / "data.jsonl", "max_steps": STEPS, "logging_steps": 1,
                    "per_device_train_batch_size": 4, "save_strategy": "no", "report_to": "none", "disable_tqdm": "true"}
        for turn in range(2 * ROUNDS):
            name = ("concord", "program")[(turn + turn // 2) % 2]
            words = [f"--{key}={value}" for key, value in {**settings, "output_dir": folder / f"{turn}"}.items()]
            python = "import concord, sys; concord.train(**dict(word[2:].split('=', 1) for word in sys.argv[1:]))"
            command = [sys.executable, "-B", "-c", python] if name == "concord" else [program, "train"]
            seconds = step_seconds([*command, *words], folder / f"{turn}")
            measured[name] += seconds
            print(f"{name}: {1e3 * statistics.quantiles(seconds, n=100)[0]:.4f} ms", file=sys.stderr, flush=True)
    ours, peer = (1e3 * statistics.quantiles(measured[name], n=100)[0] for name in ("concord", "program"))
    return {"name": STEP, "ours": ours, "peer": peer, "unit": "ms", "ratio": peer / ours, "goal": 0.99, "met": peer / ours >= 0.99}


def imports():
    measured = {"concord": [], "torch": []}
    for _ in range(ROUNDS):
        for name, code in IMPORTS.items():
            done = subprocess.run([sys.executable, "-B", "-c", code], check=True, capture_output=True, text=True)
            measured[name].append(float(done.stdout))
    ours, peer = (statistics.median(measured[name]) for name in ("concord", "torch"))
    return {"name": IMPORT, "ours": ours, "peer": peer, "unit": "s", "ratio": None, "goal": 0.3, "met": ours <= 0.3}


def main():
    program, *rest = sys.argv[1:]
    part = next((word for word in rest if not word.startswith("--")), "")
    if {word for word in rest if word.startswith("--")} - {"--json"}:
        sys.exit(2)
    rows = [measure() for name, measure in ((STEP, lambda: steps(program)), (IMPORT, imports)) if part in name]
    if "--json" in rest:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        print(f"{row['name']}: {row['ours']:.4g} {row['unit']}, peer {row['peer']:.4g}, goal {row['goal']} "
              f"{'met' if row['met'] else 'NOT MET'}")


main()
