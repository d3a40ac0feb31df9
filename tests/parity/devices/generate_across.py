"""Greedy decoding on another backend: generate_across.py PROGRAM PLATFORM

`concord generate` continues three prompts of different lengths in one batch, with golden models of a dense family and
of one with experts, in float32: on cpu, on PLATFORM, and on PLATFORM with tensor parallelism. All must choose the same
tokens. No two competing logits here are so close that the order of a sum decides; a prompt with such logits would have
to be replaced.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

TOKENS = 24
MODELS = Path(__file__).parents[2] / "golden/hf"
PROMPTS = [[(i * i * 31 + t * 7) % 250 for t in range(length)] for i, length in enumerate((3, 17, 8), start=1)]


def generate(program, platform, model, prompts, words=()):
    command = [program, "generate", "--model", str(MODELS / model), "--prompts", str(prompts), "--max_new_tokens", str(TOKENS),
               "--dtype", "float32", "--json", *words]
    environment = {**os.environ, "CONCORD_PLATFORM": platform, "OMP_NUM_THREADS": "1", "CONCORD_LOG": "warn"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} on {platform}\n{done.stdout}{done.stderr}")
    return [each["ids"] for each in json.loads(done.stdout)["generated"]]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("platform")
    arguments = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as name:
        prompts = Path(name) / "prompts.jsonl"
        prompts.write_text("".join(json.dumps({"input_ids": ids}) + "\n" for ids in PROMPTS))
        for model, words in (("qwen2-tiny", ["--nproc", "2", "--tensor_model_parallel_size", "2"]), ("mixtral-tiny", None)):
            expected = generate(arguments.program, "cpu", model, prompts)
            if len(expected) != len(PROMPTS) or len({token for ids in expected for token in ids}) < TOKENS // 2:
                sys.exit(f"{model}: {expected} compares too little; choose other prompts")
            for layout in ([], words) if words else ([],):
                found = generate(arguments.program, arguments.platform, model, prompts, layout)
                print(f"{model} on {arguments.platform} {' '.join(layout)}: {'the same tokens' if found == expected else found}")
                failed |= found != expected
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
