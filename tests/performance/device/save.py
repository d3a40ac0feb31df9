"""The cost of checkpoints for a run on a device: the stall of the loop, and the steps after a save.

save.py PROGRAM [--shapes qwen2.5-0.5b,qwen2.5-1.5b] [--batch 4] [--length 4096] [--steps 108] [--every 36]
        [--folder DIR] [--nproc N]

Trains random weights on random tokens with --async_save, and prints for each shape: seconds that the loop waited for
each save (save_seconds), the median step, and the mean of the ten steps after a save compared with the others. The
first steps and the first save are not counted. Platform and processes are those of the environment (CONCORD_PLATFORM).
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).parent))
from train import SHAPES  # noqa: E402

SHAPES = dict(SHAPES, **{"qwen2.5-1.5b": dict(
    SHAPES["qwen2.5-0.5b"], hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12),
    "100m": dict(SHAPES["qwen2.5-0.5b"], hidden_size=768, intermediate_size=2048, num_hidden_layers=10,
                 num_attention_heads=12, num_key_value_heads=4, vocab_size=24576, tie_word_embeddings=False,
                 torch_dtype="float32")})


def run(program, name, arguments, folder):
    config, data, out = folder / "config.json", folder / "data.safetensors", folder / "out"
    config.write_text(json.dumps(SHAPES[name]))
    tokens = torch.randint(0, SHAPES[name]["vocab_size"], (arguments.batch * arguments.nproc * arguments.steps,
                                                               arguments.length))
    save_file({"input_ids": tokens}, data)
    command = [program, "train", "--model_config", config, "--train_data", data, "--output_dir", out,
               *(["--bf16"] if SHAPES[name]["torch_dtype"] == "bfloat16" else []),
               "--per_device_train_batch_size", arguments.batch, "--max_steps", arguments.steps, "--logging_steps", 1,
               "--save_steps", arguments.every, "--save_total_limit", 1, "--report_to", "none", "--seq_length",
               arguments.length, "--learning_rate", "1e-4", "--nproc", arguments.nproc]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{name}: {done.stderr[-2000:]}")
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    shutil.rmtree(out)
    return lines


def report(name, lines, every):
    spent, total = {}, 0
    for line in lines:  # tokens counts from the beginning of the run
        spent[line["step"]] = (line["tokens"] - total) / line["tokens_per_second"]
        total = line["tokens"]
    saves = list(range(every, max(spent), every))  # the one at the end is not asynchronous
    after = [spent[step] for save in saves[1:] for step in range(save + 1, save + min(11, every)) if step in spent]
    other = [seconds for step, seconds in spent.items()
             if step > min(5, every - 1) and not any(save < step < save + min(11, every) for save in saves)]
    stalls = {line["step"]: line["save_seconds"] for line in lines if "save_seconds" in line}
    base = statistics.mean(other)
    print(f"{name}: step {statistics.median(other) * 1e3:.2f} ms; ten steps after a save "
          f"{statistics.mean(after) * 1e3:.2f} against {base * 1e3:.2f} ms: {statistics.mean(after) / base - 1:+.2%}; "
          f"stalls {', '.join(f'{seconds * 1e3:.1f} ms' for seconds in stalls.values())}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--shapes", default="qwen2.5-0.5b,qwen2.5-1.5b")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=108)
    parser.add_argument("--every", type=int, default=36)
    parser.add_argument("--folder")
    parser.add_argument("--nproc", type=int, default=1)
    arguments = parser.parse_args()
    for name in arguments.shapes.split(","):
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            report(name, run(arguments.program, name, arguments, Path(folder)), arguments.every)


main()
