"""Runs in deterministic mode are bitwise identical: deterministic.py PROGRAM PLATFORM [--size tiny|device] [--json
FILE]

Trains a model twice from the same seed and once more resumed from the middle, with --deterministic_mode, in several
ways, and compares losses, weights and optimizer state byte by byte. The size `device` uses the kernels of real model
sizes on a device (GEMMs of cublasLt, flash attention, grouped GEMMs) and also prints, for comparison, whether two runs
without the mode are bitwise identical, and the speed with and without the mode. Two ranks on one device need
CONCORD_CUDA_SHARED_DEVICE=1.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

STEPS = 6
DENSE = dict(
    model_type="qwen2", architectures=["Qwen2ForCausalLM"], num_hidden_layers=2, rope_theta=1e4, rms_norm_eps=1e-6,
    tie_word_embeddings=True, hidden_act="silu", initializer_range=0.02)
EXPERTS = dict(
    DENSE, model_type="qwen3_moe", architectures=["Qwen3MoeForCausalLM"], norm_topk_prob=True, decoder_sparse_step=1,
    mlp_only_layers=[], attention_bias=False, router_aux_loss_coef=0.01, output_router_logits=False)
SIZES = {
    "tiny": (dict(hidden_size=64, intermediate_size=128, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                  vocab_size=320, max_position_embeddings=64, moe_intermediate_size=32, num_experts=8, num_experts_per_tok=2),
             32, 2),
    "device": (dict(hidden_size=1024, intermediate_size=4096, num_attention_heads=16, num_key_value_heads=4, head_dim=64,
                    vocab_size=32000, max_position_embeddings=1024, moe_intermediate_size=512, num_experts=32,
                    num_experts_per_tok=4), 1024, 8),
}
# Name: model, ranks, arguments.
WAYS = {
    "dense": (DENSE, 1, ["--bf16", "true"]),
    "experts": (EXPERTS, 1, ["--bf16", "true"]),
    "packed": (DENSE, 1, ["--bf16", "true", "--sequence_packing", "true"]),
    "fp8": (DENSE, 1, ["--bf16", "true", "--fp8", "hybrid"]),
    "tensor parallel": (DENSE, 2, ["--bf16", "true", "--tensor_model_parallel_size", "2"]),
    "data parallel": (DENSE, 2, ["--bf16", "true", "--use_distributed_optimizer", "true"]),
}


def write_inputs(folder, model, size):
    shape, length, _ = SIZES[size]
    (folder / "config.json").write_text(json.dumps({**model, **shape}))
    with (folder / "data.jsonl").open("w") as file:
        for row in range(64):  # rows of uneven lengths, for packing
            words = [(row * row * 31 + token * 7 + token * token) % shape["vocab_size"] for token in range(length - row % 5)]
            file.write(json.dumps({"input_ids": words}) + "\n")


def train(arguments, folder, name, ranks, words, resume=None):
    """Returns the rows of metrics.jsonl and the checkpoints' bytes, by step and file."""
    _, length, batch = SIZES[arguments.size]
    out = folder / name
    command = [arguments.program, "train", "--nproc", ranks, "--model_config", folder / "config.json", "--train_data",
               folder / "data.jsonl", "--output_dir", out, "--seq_length", length, "--per_device_train_batch_size", batch,
               "--max_steps", STEPS, "--save_steps", STEPS // 2, "--logging_steps", 1, "--learning_rate", 1e-3,
               "--disable_tqdm", "true", "--report_to", "none", *words]
    if resume:
        command += ["--resume_from_checkpoint", resume]
    environment = {**os.environ, "CONCORD_PLATFORM": arguments.platform, "OMP_NUM_THREADS": "1", "CONCORD_LOG": "warn"}
    done = subprocess.run([str(word) for word in command], env=environment, capture_output=True, text=True, timeout=600,
                          check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    saved = {file.name: file.read_bytes() for file in (out / f"checkpoint-{STEPS}").glob("*.safetensors")}
    if not any(name.startswith("optimizer") for name in saved):
        sys.exit(f"{out}/checkpoint-{STEPS} has no optimizer state: {sorted(saved)}")
    return rows, saved


def losses(rows):
    return {row["step"]: row["loss"] for row in rows if "loss" in row and row["step"] > STEPS // 2}


def speed(rows):
    return sorted(row["tokens_per_second"] for row in rows[2:] if "tokens_per_second" in row)[-1]


def compare(arguments, name):
    model, ranks, words = WAYS[name]
    fixed = [*words, "--deterministic_mode", "true"]
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        write_inputs(folder, model, arguments.size)
        first, whole = train(arguments, folder, "first", ranks, fixed)
        second, again = train(arguments, folder, "second", ranks, fixed)
        third, resumed = train(arguments, folder, "third", ranks, fixed, folder / "first" / f"checkpoint-{STEPS // 2}")
        result = {"again": losses(first) == losses(second) and whole == again,
                  "resumed": losses(first) == losses(third) and whole == resumed}
        if arguments.size == "device":
            free, one = train(arguments, folder, "free", ranks, words)
            _, two = train(arguments, folder, "free2", ranks, words)
            result |= {"again without the mode": one == two, "speed": speed(first) / speed(free)}
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("platform")
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--ways", nargs="*", default=list(WAYS))
    parser.add_argument("--json")
    arguments = parser.parse_args()
    results = {}
    for name in arguments.ways:
        results[name] = compare(arguments, name)
        print(f"{name}: {results[name]}", flush=True)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(results, indent=1))
    return 0 if all(result["again"] and result["resumed"] for result in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
