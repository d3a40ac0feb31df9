"""LoRA and DPO on a device: tokens per second and memory of a model of a real shape with random weights.

adapters.py PROGRAM [--shape qwen2.5-7b] [--batch 4] [--length 4096] [--steps 15] [--rank 16] [--folder DIR] [--json FILE]

Trains LoRA on all projections in three settings: SFT on --batch rows, DPO on half as many pairs of the same length, and
DPO with a precomputed reference. Prints tokens per second, the ratio to SFT, and the peak of memory_bytes. DIR is for
the weights (15 GB for the 7B shape). Needs transformers, which writes them. CONCORD_PLATFORM selects the platform.
"""

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path

import torch

import train
from generate import make_model

PROMPT = 8  # tokens of a pair's prompt

SETTINGS = {
    "SFT": [],
    "DPO": ["--stage", "dpo"],
    "DPO, precomputed reference": ["--stage", "dpo", "--precompute_ref_log_probs", "true"],
}


def write_pairs(file, vocabulary, pairs, length):
    draw = random.Random(1)
    with open(file, "w") as lines:
        for _ in range(pairs):
            tokens = {"prompt_input_ids": PROMPT, "chosen_input_ids": length - PROMPT, "rejected_input_ids": length - PROMPT}
            lines.write(json.dumps({key: [draw.randrange(vocabulary) for _ in range(count)] for key, count in tokens.items()}))
            lines.write("\n")


def measure(args, folder, setting):
    is_dpo = setting != "SFT"
    batch = argparse.Namespace(**{**vars(args), "batch": args.batch // 2 if is_dpo else args.batch})
    more = ["--finetuning_type", "lora", "--lora_rank", args.rank, *SETTINGS[setting]]
    data = folder / ("pairs.jsonl" if is_dpo else "data.safetensors")
    return train.ours(args.program, folder, batch, more, ["--model", folder / "model"], data)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--shape", choices=train.SHAPES, default="qwen2.5-7b")
    parser.add_argument("--batch", type=int, default=4, help="rows per step, even")
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--folder", help="for weights and runs; by default the system's temporary folder")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    shape, results = train.SHAPES[args.shape], {}
    with tempfile.TemporaryDirectory(dir=args.folder) as path:
        folder = Path(path)
        (folder / "model").mkdir()
        make_model(shape, folder / "model")
        torch.cuda.empty_cache()
        train.write_inputs(folder, shape, args.batch * 8, args.length)
        write_pairs(folder / "pairs.jsonl", shape["vocab_size"], args.batch * 4, args.length)
        for setting in SETTINGS:
            made = results[setting] = measure(args, folder, setting)
            made["ratio"] = made["tokens_per_second"] / results["SFT"]["tokens_per_second"]
            print(f"{setting:27} {made['tokens_per_second']:9.0f} tokens/s  {made['memory_bytes'] / 2**30:6.1f} GiB  "
                  f"{made['ratio']:.2f} of SFT", flush=True)
    if args.json:
        args.json.write_text(json.dumps({"shape": args.shape, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
