"""Generation with a model of a real shape on a device, compared with transformers in one run.

generate.py PROGRAM [--shape qwen2.5-0.5b] [--prompt 64] [--new 100,500] [--json FILE]

Random weights, batch 1, greedy. Prints tokens per second of `concord generate`, with recorded steps and without
(CONCORD_DECODE=eager), and of transformers' generate (sdpa, its second call). Ours are those of a whole call in a
separate process, including the time to load libraries; "further" are the tokens beyond the shortest run, without it.
Fails if recorded steps give other tokens, or if tokens differ from transformers' in float32 by more than rounding
explains. Platform and device are those of the environment (CONCORD_PLATFORM).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from train import SHAPES  # noqa: E402

IN_FLOAT32 = 50  # tokens that have to be transformers'


def make_model(shape, folder):
    from transformers import AutoConfig, AutoModelForCausalLM
    (folder / "config.json").write_text(json.dumps(shape))
    torch.manual_seed(1)
    config = AutoConfig.from_pretrained(folder)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with device:
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.bfloat16).eval()
    model.save_pretrained(folder)
    return model


def ours(program, folder, new, dtype, steps):
    command = [program, "generate", "--model", folder, "--prompts", folder / "prompts.jsonl", "--max_new_tokens", new,
               "--dtype", dtype, "--json"]
    ended = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                           env={**os.environ, "CONCORD_DECODE": steps, "CONCORD_LOG": "debug"})
    if ended.returncode != 0:
        sys.exit(f"concord generate failed:\n{ended.stdout[-2000:]}\n{ended.stderr[-4000:]}")
    for line in ended.stderr.splitlines():
        if "recorded" in line:
            print(line[:400])
    document = json.loads(ended.stdout)
    return document["generated"][0]["ids"], document["seconds"]


def theirs(model, prompt, new):
    ids = torch.tensor([prompt], device=model.device)
    wait = torch.cuda.synchronize if model.device.type == "cuda" else (lambda: None)
    wait()
    begin = time.perf_counter()
    with torch.no_grad():
        made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, min_new_tokens=new,
                              do_sample=False, pad_token_id=0)
    wait()
    return made[0, len(prompt):].tolist(), time.perf_counter() - begin


def same(a, b):
    """Returns the number of equal tokens before the first difference."""
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def measure(program, model, folder, prompt, counts):
    theirs(model, prompt, min(counts))  # kernels load
    runs = {"transformers": lambda new: theirs(model, prompt, new),
            "concord, eager": lambda new: ours(program, folder, new, "bfloat16", "eager"),
            "concord": lambda new: ours(program, folder, new, "bfloat16", "replay")}
    results = {name: {new: run(new) for new in counts} for name, run in runs.items()}
    table = {}
    for name, made in results.items():
        row = {f"{new} tokens": new / seconds for new, (_, seconds) in made.items()}
        (few, (_, short)), (many, (_, long)) = min(made.items()), max(made.items())
        if many > few:
            row["further"] = (many - few) / (long - short)
        table[name] = row
    for name, row in table.items():
        print(f"{name:16}", "  ".join(f"{what} {rate:8.1f} tokens/s ({rate / table['transformers'][what]:5.2f} x)"
                                      for what, rate in row.items()), flush=True)
    for new in counts:
        recorded, eager, peer = (results[name][new][0] for name in ("concord", "concord, eager", "transformers"))
        print(f"{new} tokens in bfloat16: {same(recorded, eager)} as without recording, {same(recorded, peer)} as "
              "transformers", flush=True)
        if recorded != eager:
            sys.exit("recorded steps give other tokens")
    return table


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--shape", choices=SHAPES, default="qwen2.5-0.5b")
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--new", default="100,500")
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    counts = [int(word) for word in args.new.split(",")]
    shape = SHAPES[args.shape]
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        model = make_model(shape, folder)
        prompt = torch.randint(0, shape["vocab_size"], (args.prompt,)).tolist()
        (folder / "prompts.jsonl").write_text(json.dumps({"input_ids": prompt}) + "\n")
        table = measure(args.program, model, folder, prompt, counts)
        peer = theirs(model.float(), prompt, IN_FLOAT32)[0]
        own = {steps: ours(args.program, folder, IN_FLOAT32, "float32", steps)[0] for steps in ("replay", "eager")}
    print(f"{IN_FLOAT32} tokens in float32: {same(own['replay'], own['eager'])} as without recording, "
          f"{same(own['replay'], peer)} as transformers")
    if args.json:
        Path(args.json).write_text(json.dumps({"shape": args.shape, "prompt": args.prompt, "tokens_per_second": table},
                                              indent=2) + "\n")
    return "float32: other tokens" if own["replay"] != peer or own["eager"] != peer else None


if __name__ == "__main__":
    sys.exit(main())
