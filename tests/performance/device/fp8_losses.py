"""What 8-bit floats change of the loss of a training run: fp8 beside bf16, and bf16 beside itself, over several seeds.

fp8_losses.py PROGRAM [--seeds 8] [--steps 300] [--batch 16] [--length 512] [--shape small] [--way fp8] ...
              [--learning_rate 6e-4] [--parallel 4] [--json FILE]

A seed draws the first weights and the batches: rows of bytes out of this repository's texts. Every way of computing trains
the same batches from the same weights; its result is the difference of its mean loss to that of the bf16 run of the seed, over
all steps and over the last third. Printed are the differences, their mean and its 95 % interval (Student's t over seeds). bf16
against itself, once more and with its batches in two halves, which rounds other sums, says how much of that is noise: fp8 costs
nothing that can be seen if its interval covers those. Platform as in the environment (CONCORD_PLATFORM); --parallel runs at once.
"""

import argparse
import concurrent.futures
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SHAPES = {  # hidden, intermediate, layers, heads, key and value heads; sizes that kernels of 8 bits are written for
    "0.5b": (896, 4864, 24, 14, 2),
    "small": (768, 2304, 8, 12, 4),
    "25m": (512, 1536, 8, 8, 4),
    "tiny": (64, 128, 2, 4, 2),
}
BATCH = "--per_device_train_batch_size"
WAYS = {
    "bf16": lambda batch: [BATCH, batch],
    "bf16 again": lambda batch: [BATCH, batch],
    "bf16, two halves": lambda batch: [BATCH, batch // 2, "--gradient_accumulation_steps", 2],
    "fp8": lambda batch: [BATCH, batch, "--fp8", "hybrid"],
    "fp8, history 1024": lambda batch: [BATCH, batch, "--fp8", "hybrid", "--fp8_amax_history_len", 1024],
}
# Student's t for a two-sided 95 % interval, by degrees of freedom from 1.
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101,
       2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)


def repository_text():
    root = Path(__file__).resolve().parents[3]
    files = [path for folder in ("backends", "core", "docs", "platform", "tests", "trainer") for path in (root / folder).rglob("*")
             if path.suffix in (".cpp", ".h", ".hpp", ".md", ".py")]
    return b"".join(path.read_bytes() for path in sorted(files))


def write_inputs(folder, args, seed, text):
    hidden, intermediate, layers, heads, kv_heads = SHAPES[args.shape]
    (folder / "config.json").write_text(json.dumps({
        "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": hidden, "intermediate_size": intermediate,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "vocab_size": 256,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": False, "hidden_act": "silu",
        "initializer_range": 0.02, "torch_dtype": "bfloat16"}))
    draw = random.Random(seed)
    with open(folder / "data.jsonl", "w") as file:
        for _ in range(args.steps * args.batch):
            first = draw.randrange(len(text) - args.length)
            file.write(json.dumps({"input_ids": list(text[first:first + args.length])}) + "\n")


def train(program, folder, args, seed, way, arguments):
    """The losses of all steps."""
    out = folder / way.replace(" ", "-").replace(",", "")
    command = [program, "train", "--nproc", 1, "--model_config", folder / "config.json", "--train_data", folder / "data.jsonl", "--shuffle",
               "false", "--seq_length", args.length, "--max_steps", args.steps, "--bf16", "--seed", seed, "--learning_rate", args.learning_rate,
               "--lr_scheduler_type", "constant_with_warmup", "--warmup_steps", args.steps // 10, "--logging_steps", 1, "--save_strategy",
               "no", "--report_to", "none", "--output_dir", out, *arguments]
    ended = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if ended.returncode != 0:
        raise RuntimeError(f"{way}, seed {seed}: concord train failed:\n{ended.stdout[-2000:]}\n{ended.stderr[-4000:]}")
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    if len(losses) != args.steps:
        raise RuntimeError(f"{way}, seed {seed}: {len(losses)} losses of {args.steps} steps")
    return losses


def interval(differences):
    """The mean, and what is to be added and taken away for 95 %."""
    count = len(differences)
    return statistics.fmean(differences), T95[count - 2] * statistics.stdev(differences) / math.sqrt(count)


def report(losses, seeds, steps, base):
    results = {}
    for part, first in (("all steps", 0), ("last third", steps - steps // 3)):
        for way in (way for way in losses if way != base):
            means = [[statistics.fmean(losses[which][seed][first:]) for seed in seeds] for which in (way, base)]
            differences = [100 * (own / plain - 1) for own, plain in zip(*means)]
            mean, half = interval(differences)
            results[f"{way}, {part}"] = {"percent": differences, "mean": mean, "low": mean - half, "high": mean + half}
            print(f"{part:10}  {way:20} {mean:+.2f} %, 95 % interval {mean - half:+.2f} to {mean + half:+.2f} %   ("
                  + ", ".join(f"{each:+.2f}" for each in differences) + ")", flush=True)
    return results


def main(text=__doc__, all_ways=WAYS, **defaults):
    """Compares |all_ways| with the first of them; |defaults| are those of the arguments."""
    base, *others = all_ways
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--seeds", type=int, default=8, choices=range(2, len(T95) + 2), metavar=f"2..{len(T95) + 1}")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=16, help="even")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--learning_rate", type=float, default=6e-4)
    parser.add_argument("--way", choices=others, action="append", help="default: all of them")
    parser.add_argument("--parallel", type=int, default=4)
    parser.add_argument("--json", default="")
    parser.set_defaults(**defaults)
    args = parser.parse_args()
    ways = [base, *(args.way or others)]
    losses, seeds, text = {way: {} for way in ways}, range(1, args.seeds + 1), repository_text()
    with tempfile.TemporaryDirectory() as path, concurrent.futures.ThreadPoolExecutor(args.parallel) as pool:
        for seed in seeds:
            (Path(path) / str(seed)).mkdir()
            write_inputs(Path(path) / str(seed), args, seed, text)
        runs = {pool.submit(train, args.program, Path(path) / str(seed), args, seed, way, all_ways[way](args.batch)): (way, seed) for seed in seeds for way in ways}
        for run in concurrent.futures.as_completed(runs):
            way, seed = runs[run]
            losses[way][seed] = run.result()
            print(f"{way}, seed {seed}: loss {losses[way][seed][0]:.4f} to {losses[way][seed][-1]:.4f}", flush=True)
    results = report(losses, seeds, args.steps, base)
    if args.json:
        Path(args.json).write_text(json.dumps({"arguments": vars(args), "results": results, "losses": losses}) + "\n")


if __name__ == "__main__":
    sys.exit(main())
