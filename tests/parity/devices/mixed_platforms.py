"""Jobs whose ranks are on different platforms: mixed_platforms.py PROGRAM OTHER [--filter TEXT] [--json FILE]

20 steps in fp32 with pipeline stages and with replicas on cpu and on OTHER, in both orders, compared with the same
layout on cpu alone. Fails if a loss differs by more than 1e-5 of it: the two platforms round differently (6e-8 per
operation), and updates of AdamW amplify that by less than a hundred in 20 steps (resume_across.py). Values that cross
platforms are not rounded, and reductions across them are computed in rank order, as on cpu alone.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from largest import largest
from small_data import write_rows

STEPS, BOUND = 20, 1e-5
MODEL = Path(__file__).parents[2] / "golden/hf/qwen2-tiny"
TIED = MODEL.parent / "qwen2-tied"
PIPELINE = "--pipeline_model_parallel_size 2 --gradient_accumulation_steps 4"
REPLICAS = "--gradient_accumulation_steps 2"
LAYOUTS = {
    "pipeline, 1f1b": (2, PIPELINE),
    "pipeline, zero bubble": (2, f"{PIPELINE} --pipeline_schedule zb-h1"),
    "replicas, ZeRO-1": (2, f"{REPLICAS} --use_distributed_optimizer true"),
    "pipeline of replicas": (4, f"--pipeline_model_parallel_size 2 {REPLICAS} --use_distributed_optimizer true"),
    "pipeline, tensor parallel stages": (4, f"{PIPELINE} --tensor_model_parallel_size 2"),
}
# What is refused, with a part of the message.
REFUSED = {
    "replicas that update all weights": (f"{REPLICAS} --use_distributed_optimizer false", "use_distributed_optimizer"),
    "stages that share the embedding": (f"{PIPELINE} --model {TIED}", "tie_word_embeddings"),
    "tensor parallelism": ("--tensor_model_parallel_size 2", "the tp group of ranks 0,1"),
}


def start(program, platforms, ranks, words, data, output):
    command = [program, "train", "--nproc", str(ranks), "--platform", platforms, "--model", str(MODEL),
               "--train_data", str(data), "--output_dir", str(output), "--max_steps", str(STEPS), "--logging_steps", "1",
               "--learning_rate", "1e-3", "--per_device_train_batch_size", "2", "--disable_tqdm", "true",
               "--save_strategy", "no", *words.split()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CONCORD_LOG": "warn"}
    environment.pop("CONCORD_PLATFORM", None)
    return command, subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)


def train(program, platforms, ranks, words, data, output):
    command, done = start(program, platforms, ranks, words, data, output)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    names = platforms.split(",")
    wanted = ", ".join(f"{ranks // len(names)} x {name}" for name in names) if len(names) > 1 else f"{ranks} x cpu"
    if wanted not in done.stdout:
        sys.exit(f"the run does not say that it is on {wanted}:\n{done.stdout}")
    if ("memory: about" in done.stdout) != (names[0] != "cpu"):
        sys.exit(f"a device's memory, and only that, is expected to be said:\n{done.stdout}")
    lines = (json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if "loss" in line]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("other")
    parser.add_argument("--filter", default="", help="only layouts whose name contains this text")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = write_rows(folder)
        for layout, (ranks, words) in LAYOUTS.items():
            if arguments.filter not in layout:
                continue
            alone = train(arguments.program, "cpu", ranks, words, data, folder / f"{layout} alone")
            for platforms in (f"cpu,{arguments.other}", f"{arguments.other},cpu"):
                mixed = train(arguments.program, platforms, ranks, words, data, folder / f"{layout} {platforms}")
                if not len(alone) == len(mixed) == STEPS:
                    sys.exit(f"{layout} on {platforms}: {len(mixed)} losses, {len(alone)} on cpu alone")
                worst = largest(*(abs(a - b) / a for a, b in zip(alone, mixed)))
                rows.append({"layout": layout, "platforms": platforms, "largest_relative_difference": worst,
                             "alone": alone, "mixed": mixed})
                print(f"{layout} on {platforms}: losses of {STEPS} steps within {worst:.2g} of cpu alone", flush=True)
        for name, (words, reason) in REFUSED.items():
            if arguments.filter not in name:
                continue
            command, done = start(arguments.program, f"cpu,{arguments.other}", 2, words, data, folder / name)
            if done.returncode == 0 or reason not in done.stderr:
                sys.exit(f"{' '.join(command)} should be refused with '{reason}':\n{done.stdout}{done.stderr}")
            print(f"{name}: refused")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if all(row["largest_relative_difference"] <= BOUND for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
