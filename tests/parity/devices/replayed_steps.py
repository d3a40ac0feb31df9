"""Training with replayed steps on a device that supports recording, compared with the same runs without replays.

replayed_steps.py PROGRAM

Trains a tiny model for a few steps with --replay_steps true and false, in several ways, and compares the saved models
byte by byte. A run with replays must report that it recorded a step, and one without must not. The platform is that of
the environment (CONCORD_PLATFORM); two replicas need CONCORD_CUDA_SHARED_DEVICE=1 on one device. The effect of replays
on the host's work is tested on any machine (trainer/step_graph_test.cpp); this tests the device's own recordings.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

MODELS = Path(__file__).parents[2] / "golden" / "hf"
SAID = "the passes of a step are recorded"


class Way(NamedTuple):
    words: list
    model: str = "qwen2-tiny"
    ranks: int = 1
    records: bool = True


WAYS = {
    "fp32": Way([]),
    "bf16": Way(["--bf16", "true"]),
    "fp8": Way(["--bf16", "true", "--fp8", "hybrid"]),
    "fp8 in blocks": Way(["--bf16", "true", "--fp8", "e4m3", "--fp8_recipe", "blockwise"]),
    "experts": Way(["--bf16", "true", "--moe_router_load_balancing_type", "aux_loss", "--moe_aux_loss_coeff", "0.01"], "qwen3-moe-tiny"),
    "experts with a capacity": Way(["--bf16", "true", "--moe_expert_capacity_factor", "1"], "qwen2-moe-tiny"),
    "experts in fp32, whose products wait": Way([], "qwen3-moe-tiny", records=False),
    "evaluation": Way(["--eval_data", "{data}", "--eval_steps", "2", "--eval_iters", "1"]),
    "recomputation": Way(["--recompute_granularity", "full", "--recompute_method", "uniform", "--recompute_num_layers", "1"]),
    "lora": Way(["--finetuning_type", "lora", "--lora_rank", "4"]),
    "muon": Way(["--optim", "muon"]),
    "two replicas": Way(["--nproc", "2"], ranks=2),
    "two replicas, distributed optimizer": Way(["--nproc", "2", "--use_distributed_optimizer", "true"], ranks=2),
}


def write_data(path):
    rows = ([(sample * 31 + token * 7) % 250 for token in range(16)] for sample in range(64))
    path.write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in rows))


def train(program, folder, replays, way):
    """Returns the bytes of the trained model or adapter, and the number of ranks that have recorded a step."""
    out = folder / f"replay-{replays}"
    words = [program, "train", "--model", MODELS / way.model, "--train_data", folder / "data.jsonl", "--output_dir", out,
             "--overwrite_output_dir", "true", "--max_steps", 12, "--learning_rate", 1e-3, "--per_device_train_batch_size", 2,
             "--gradient_accumulation_steps", 2, "--save_strategy", "steps", "--save_steps", 12, "--replay_steps", replays]
    words += [word.format(data=folder / "data.jsonl") for word in way.words]
    ended = subprocess.run([str(word) for word in words], capture_output=True, text=True, env={**os.environ, "CONCORD_LOG": "info"})
    if ended.returncode != 0:
        sys.exit(f"replay_steps {replays}, {way}: exit code {ended.returncode}\n{ended.stderr[-4000:]}")
    saved = sorted((out / "model").glob("*model*.safetensors"))
    return b"".join(path.read_bytes() for path in saved), ended.stderr.count(SAID) + ended.stdout.count(SAID)


def main():
    failed = False
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        write_data(folder / "data.jsonl")
        for name, way in WAYS.items():
            expected, none = train(sys.argv[1], folder, "false", way)
            got, recorded = train(sys.argv[1], folder, "true", way)
            ranks = way.ranks if way.records else 0
            problems = [problem for problem, is_so in (
                ("the models differ", got != expected), ("no model was saved", not expected),
                (f"{recorded} ranks recorded a step instead of {ranks}", recorded != ranks),
                ("steps were recorded without replay_steps", none != 0)) if is_so]
            failed = failed or bool(problems)
            print(f"{name}: {'; '.join(problems) or f'{len(expected)} equal bytes'}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
