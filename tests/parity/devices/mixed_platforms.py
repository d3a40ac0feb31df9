"""Jobs whose ranks are on different platforms: mixed_platforms.py PROGRAM OTHER [--filter TEXT] [--json FILE]

20 steps with pipeline stages and with replicas on cpu and on OTHER, in both orders, compared with the same layout on cpu
alone. Fails if a loss in fp32 differs by more than 1e-5 of it: the two platforms round differently (6e-8 per operation),
and updates of AdamW amplify that by less than a hundred in 20 steps (resume_across.py). In bf16 an activation is rounded
to 2^-9 of it, so each of two platforms that round differently can be wrong by as much: the bound is 2^-8. Values that
cross platforms are not rounded, and reductions across them are computed in rank order, as on cpu alone. Every step
compares the weights that several ranks have, bit for bit.

moved: a run on cpu and OTHER is resumed after half of its steps, with every rank on the other platform, and on cpu alone.
killed: in a run on cpu and OTHER a rank of either is killed; the restarted job has the bits of the one without faults.
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

STEPS, BOUND, BOUND_BF16 = 20, 1e-5, 2**-8
MODEL = Path(__file__).parents[2] / "golden/hf/qwen2-tiny"
TIED = MODEL.parent / "qwen2-tied"
EXPERTS = MODEL.parent / "qwen3-moe-tiny"
BF16 = "--bf16 true"
PIPELINE = "--pipeline_model_parallel_size 2 --gradient_accumulation_steps 4"
REPLICAS = "--gradient_accumulation_steps 2"
LAYOUTS = {
    "schedules: 1f1b": (2, PIPELINE),
    "schedules: zero bubble": (2, f"{PIPELINE} --pipeline_schedule zb-h1"),
    "schedules: interleaved": (2, f"{PIPELINE} --virtual_pipeline_model_parallel_size 2"),
    "stages: tensor parallel": (4, f"{PIPELINE} --tensor_model_parallel_size 2"),
    "stages: with experts, recomputed": (2, f"{PIPELINE} --model {EXPERTS} --recompute_granularity full "
                                         "--recompute_method uniform --recompute_num_layers 1"),
    "shared embedding: stages": (2, f"{PIPELINE} --model {TIED}"),
    "shared embedding: stages in bf16": (2, f"{PIPELINE} --model {TIED} {BF16}"),
    "shared embedding: stages and replicas": (4, f"--pipeline_model_parallel_size 2 {REPLICAS} --model {TIED}"),
    "replicas: ZeRO-1": (2, f"{REPLICAS} --use_distributed_optimizer true"),
    "replicas: default": (2, REPLICAS),
    "replicas: of a pipeline": (4, f"--pipeline_model_parallel_size 2 {REPLICAS}"),
    "replicas: 3 to 1 micro-batches": (2, "--gradient_accumulation_steps 2 --heterogeneous_split 3,1"),
}
MOVED = {"moved: stages, shared embedding": (2, f"{PIPELINE} --model {TIED}"), "moved: replicas": (2, REPLICAS)}
KILLED = {"killed: stages": (2, PIPELINE), "killed: replicas": (2, REPLICAS)}
# What is refused, with a part of the message.
REFUSED = {
    "refused: tensor parallelism": ("--tensor_model_parallel_size 2", "the tp group of ranks 0,1"),
}


def start(program, platforms, ranks, words, data, output, variables=None):
    command = [program, "train", "--nproc", str(ranks), "--platform", platforms, "--model", str(MODEL),
               "--train_data", str(data), "--output_dir", str(output), "--max_steps", str(STEPS), "--logging_steps", "1",
               "--learning_rate", "1e-3", "--per_device_train_batch_size", "2", "--disable_tqdm", "true",
               "--check_replicas_steps", "1", "--save_strategy", "no", *words.split()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CONCORD_LOG": "warn", **(variables or {})}
    environment.pop("CONCORD_PLATFORM", None)
    return command, subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)


def train(program, platforms, ranks, words, data, output, variables=None):
    command, done = start(program, platforms, ranks, words, data, output, variables)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    names = platforms.split(",")
    wanted = ", ".join(f"{ranks // len(names)} x {name}" for name in names) if len(names) > 1 else f"{ranks} x cpu"
    if wanted not in done.stdout:
        sys.exit(f"the run does not say that it is on {wanted}:\n{done.stdout}")
    if ("memory: about" in done.stdout) != (names[0] != "cpu"):
        sys.exit(f"a device's memory, and only that, is expected to be said:\n{done.stdout}")
    lines = (json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


def compare(name, platforms, words, alone, mixed, steps):
    if not len(alone) == STEPS or not set(steps) <= set(mixed):
        sys.exit(f"{name} on {platforms}: losses of steps {sorted(mixed)}, of {STEPS} on cpu alone: {len(alone)}")
    worst = largest(*(abs(alone[step] - mixed[step]) / alone[step] for step in steps))
    print(f"{name} on {platforms}: losses of {len(steps)} steps within {worst:.2g} of cpu alone", flush=True)
    return {"layout": name, "platforms": platforms, "largest_relative_difference": worst,
            "bound": BOUND_BF16 if BF16 in words else BOUND, "alone": list(alone.values()), "mixed": list(mixed.values())}


def check_layout(name, arguments, data, folder):
    ranks, words = LAYOUTS[name]
    alone = train(arguments.program, "cpu", ranks, words, data, folder / f"{name} alone")
    return [compare(name, platforms, words, alone,
                    train(arguments.program, platforms, ranks, words, data, folder / f"{name} {platforms}"),
                    range(1, STEPS + 1)) for platforms in (f"cpu,{arguments.other}", f"{arguments.other},cpu")]


def check_moves(name, arguments, data, folder):
    ranks, words = MOVED[name]
    alone = train(arguments.program, "cpu", ranks, words, data, folder / f"{name} alone")
    saves = f"{words} --save_strategy steps --save_steps {STEPS // 2}"
    train(arguments.program, f"cpu,{arguments.other}", ranks, saves, data, folder / "first")
    resume = f"{words} --resume_from_checkpoint {folder / 'first' / f'checkpoint-{STEPS // 2}'}"
    return [compare(name, platforms, words, alone,
                    train(arguments.program, platforms, ranks, resume, data, folder / f"{name} {platforms}"),
                    range(STEPS // 2 + 1, STEPS + 1)) for platforms in (f"{arguments.other},cpu", "cpu")]


def check_kills(name, arguments, data, folder):
    ranks, words = KILLED[name]
    words += f" --save_strategy steps --save_steps {STEPS // 4} --max_restarts 3"
    platforms = f"cpu,{arguments.other}"
    faults, log = f"kill:0@{STEPS // 2}+500,kill:{ranks - 1}@{3 * STEPS // 4 + 2}+500", folder / "recovery.jsonl"
    train(arguments.program, platforms, ranks, words, data, folder / "whole")
    train(arguments.program, platforms, ranks, words, data, folder / "killed",
          {"CONCORD_FAULTS": faults, "CONCORD_RECOVERY_LOG": str(log)})
    killed = [event["rank"] for event in map(json.loads, log.read_text().splitlines()) if event["event"] == "fault"]
    if killed != [0, ranks - 1]:
        sys.exit(f"{name} on {platforms}: ranks {killed} were killed, not 0 and {ranks - 1}")
    for file in ("model.safetensors", "optimizer.safetensors"):
        files = [folder / run / f"checkpoint-{STEPS}" / file for run in ("whole", "killed")]
        if files[0].read_bytes() != files[1].read_bytes():
            sys.exit(f"{name} on {platforms}: {file} has other bits than without faults")
    print(f"{name} on {platforms}: ranks 0 and {ranks - 1} were killed, same bits as without faults", flush=True)
    return []


def check_refused(name, arguments, data, folder):
    words, reason = REFUSED[name]
    command, done = start(arguments.program, f"cpu,{arguments.other}", 2, words, data, folder / name)
    if done.returncode == 0 or reason not in done.stderr:
        sys.exit(f"{' '.join(command)} should be refused with '{reason}':\n{done.stdout}{done.stderr}")
    print(f"{name}: refused")
    return []


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("other")
    parser.add_argument("--filter", default="", help="only checks whose name begins with this text")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    rows, ran = [], 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = write_rows(folder, vocabulary=256)  # the model with experts has no more
        for check, cases in ((check_layout, LAYOUTS), (check_moves, MOVED), (check_kills, KILLED), (check_refused, REFUSED)):
            for case in cases:
                if case.startswith(arguments.filter):
                    place = folder / str(ran)
                    place.mkdir()
                    rows += check(case, arguments, data, place)
                    ran += 1
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if ran and all(row["largest_relative_difference"] <= row["bound"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
