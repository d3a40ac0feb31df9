"""A run that changes its backend twice: resume_across.py PROGRAM PLATFORM [--nproc N] [--json FILE]

12 steps on cpu; and the same run with steps 5 to 8 on PLATFORM and 9 to 12 on cpu again, each leg resumed from the
checkpoint of the previous one, with another layout if there are two ranks. Fails if a loss differs from that of the run
on cpu by more than 2e-5: losses are near 5, fp32 has a relative rounding of 6e-8, and steps of AdamW amplify
differences of sums by less than a hundred (5e-6 was measured after 20 of them). The leg on PLATFORM is also resumed on
PLATFORM with its own layout: losses, weights and optimizer state must be bitwise identical. All runs are in
deterministic mode.
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

STEPS, LEG, BOUND = 12, 4, 2e-5
MODEL = Path(__file__).parents[2] / "golden/hf/qwen2-tiny"


def train(program, platform, words, data, output, resume=None):
    command = [program, "train", "--model", str(MODEL), "--train_data", str(data), "--output_dir", str(output),
               "--max_steps", str(STEPS), "--save_steps", str(LEG), "--logging_steps", "1", "--learning_rate", "1e-3",
               "--per_device_train_batch_size", "2", "--disable_tqdm", "true", "--deterministic_mode", "true", *words]
    if resume:
        command += ["--resume_from_checkpoint", str(resume)]
    environment = {**os.environ, "CONCORD_PLATFORM": platform, "OMP_NUM_THREADS": "1", "CONCORD_LOG": "warn"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    lines = (json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("platform")
    parser.add_argument("--nproc", type=int, default=2)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    two = arguments.nproc == 2
    first = ["--nproc", str(arguments.nproc), "--gradient_accumulation_steps", "2" if two else "4"]
    second = ["--nproc", str(arguments.nproc), "--gradient_accumulation_steps", "4"]
    if two:
        second += ["--tensor_model_parallel_size", "2"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = write_rows(folder)
        whole = train(arguments.program, "cpu", first, data, folder / "whole")
        there = train(arguments.program, arguments.platform, second, data, folder / "there",
                      folder / "whole" / f"checkpoint-{LEG}")
        again = train(arguments.program, arguments.platform, second, data, folder / "again",
                      folder / "there" / f"checkpoint-{2 * LEG}")
        identical = all(again[s] == there[s] for s in range(2 * LEG + 1, STEPS + 1)) and all(
            (folder / "again" / f"checkpoint-{STEPS}" / name).read_bytes() ==
            (folder / "there" / f"checkpoint-{STEPS}" / name).read_bytes()
            for name in ("model.safetensors", "optimizer.safetensors"))
        back = train(arguments.program, "cpu", first, data, folder / "back", folder / "there" / f"checkpoint-{2 * LEG}")
    joined = {**{s: whole[s] for s in range(1, LEG + 1)}, **{s: there[s] for s in range(LEG + 1, 2 * LEG + 1)},
              **{s: back[s] for s in range(2 * LEG + 1, STEPS + 1)}}
    worst = largest(*(abs(joined[s] - whole[s]) for s in whole))
    print(f"cpu -> {arguments.platform} -> cpu: losses of {STEPS} steps within {worst:.2g} of the run on cpu")
    print(f"resumed on {arguments.platform} itself: {'the same bits' if identical else 'other bits'}")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({"platform": arguments.platform, "whole": whole, "joined": joined}))
    return 0 if worst <= BOUND and identical else 1


if __name__ == "__main__":
    sys.exit(main())
