"""The optimizer's state in every type, on the device and streamed through it: state_types.py PROGRAM PLATFORM [--all]
[--ways WAY...] [--types TYPE...]

Trains a small model three times: with its state on the device, with the state in host memory that the device updates
(optimizer_offload_update device), and the second one again, resumed from the middle. Losses, weights, EMA and state have
to be bitwise identical. With clipping and checks of replicas. By default a few pairs of a layout and a type, in which each
occurs; --all for every pair.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

STEPS, LENGTH = 6, 32
GOLDEN = Path(__file__).parents[2] / "golden/hf/qwen2-tiny"  # what adapters are trained on
SHAPE = dict(
    hidden_size=64, intermediate_size=128, num_attention_heads=4, num_key_value_heads=2, head_dim=16, vocab_size=320,
    max_position_embeddings=64, moe_intermediate_size=64, num_experts=4, num_experts_per_tok=2)
# Parts of 256 columns and more, since blocks of codes are not split.
WIDE = dict(SHAPE, hidden_size=512, intermediate_size=512, num_attention_heads=8, num_key_value_heads=4, head_dim=64)
DENSE = dict(
    model_type="qwen2", architectures=["Qwen2ForCausalLM"], num_hidden_layers=2, rope_theta=1e4, rms_norm_eps=1e-6,
    tie_word_embeddings=True, hidden_act="silu", initializer_range=0.02)
EXPERTS = dict(
    DENSE, model_type="qwen3_moe", architectures=["Qwen3MoeForCausalLM"], norm_topk_prob=True, decoder_sparse_step=1,
    mlp_only_layers=[], attention_bias=False, router_aux_loss_coef=0.01, output_router_logits=False)
# Name: model, ranks, arguments.
WAYS = {
    "dense": (DENSE | SHAPE, 1, ["--bf16", "true", "--ema_decay", 0.9]),
    "zero": (DENSE | SHAPE, 2, ["--bf16", "true", "--use_distributed_optimizer", "true", "--ema_decay", 0.9,
                                "--check_replicas_steps", 2]),
    "tensor": (DENSE | WIDE, 2, ["--bf16", "true", "--tensor_model_parallel_size", 2, "--sequence_parallel", "true"]),
    "pipeline": (DENSE | SHAPE, 2, ["--bf16", "true", "--pipeline_model_parallel_size", 2]),
    "experts": (EXPERTS | SHAPE, 2, ["--bf16", "true", "--expert_model_parallel_size", 2]),
    "lora": (DENSE | SHAPE, 1, ["--bf16", "true", "--finetuning_type", "lora", "--lora_rank", 64]),
    "fp8": (DENSE | SHAPE, 1, ["--bf16", "true", "--fp8", "hybrid"]),
    "loss scale": (DENSE | SHAPE, 1, ["--fp16", "true"]),
    "reruns": (DENSE | SHAPE, 1, ["--bf16", "true", "--rerun_mode", "validate"]),
}
TYPES = {
    "fp32": [],
    "bf16": ["--exp_avg_dtype", "bf16", "--exp_avg_sq_dtype", "bf16", "--adam_beta2", 0.95],
    "fp16": ["--exp_avg_dtype", "fp16", "--exp_avg_sq_dtype", "fp16"],
    "8bit": ["--exp_avg_dtype", "8bit", "--exp_avg_sq_dtype", "8bit"],
    "remainder": ["--exp_avg_dtype", "8bit", "--exp_avg_sq_dtype", "8bit", "--main_params_dtype", "remainder"],
    "kahan": ["--main_params_dtype", "kahan_sum"],
    "stochastic": ["--main_params_dtype", "bf16_stochastic_round"],
}
PAIRS = [("dense", "fp32"), ("zero", "remainder"), ("tensor", "8bit"), ("pipeline", "bf16"), ("experts", "fp16"),
         ("lora", "stochastic"), ("fp8", "remainder"), ("loss scale", "8bit"), ("reruns", "kahan"), ("dense", "fp16")]


def write_inputs(folder, model):
    (folder / "config.json").write_text(json.dumps(model))
    with (folder / "data.jsonl").open("w") as file:
        for row in range(64):
            words = [(row * row * 31 + token * 7 + token * token) % model["vocab_size"] for token in range(LENGTH)]
            file.write(json.dumps({"input_ids": words}) + "\n")


def train(arguments, folder, name, ranks, words, resume=None):
    """Returns the losses and the last checkpoint's tensors."""
    out = folder / name
    base = ["--model", GOLDEN] if "lora" in words else ["--model_config", folder / "config.json"]
    command = [arguments.program, "train", "--nproc", ranks, *base, "--train_data", folder / "data.jsonl", "--output_dir", out, "--seq_length", LENGTH, "--per_device_train_batch_size", 2,
               "--max_steps", STEPS, "--save_steps", STEPS // 2, "--logging_steps", 1, "--learning_rate", 1e-3,
               "--max_grad_norm", 0.1, "--deterministic_mode", "true", "--disable_tqdm", "true", "--report_to", "none",
               *words]
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
    return {row["step"]: row["loss"] for row in rows if "loss" in row}, saved


def differences(a, b):
    files = sorted(set(a[1]) | set(b[1]))
    different = [file for file in files if a[1].get(file) != b[1].get(file)]
    return different + [f"loss of step {step}" for step in a[0] if step in b[0] and a[0][step] != b[0][step]]


def compare(arguments, way, kind):
    model, ranks, words = WAYS[way]
    words = [*words, *TYPES[kind]]
    streams = ["--optimizer_cpu_offload", "true", "--optimizer_offload_update", "device"]
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        write_inputs(folder, model)
        plain = train(arguments, folder, "plain", ranks, words)
        streamed = train(arguments, folder, "streamed", ranks, words + streams)
        resumed = train(arguments, folder, "resumed", ranks, words + streams,
                        folder / "streamed" / f"checkpoint-{STEPS // 2}")
        found = [f"streamed: {each}" for each in differences(plain, streamed)]
        return found + [f"resumed: {each}" for each in differences(streamed, resumed)]


def is_possible(way, kind):
    return not (way == "loss scale" and kind in ("remainder", "kahan", "stochastic"))  # these need bf16 weights


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("platform")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--types", nargs="*", default=list(TYPES), choices=list(TYPES))
    arguments = parser.parse_args()
    pairs = [(way, kind) for way in WAYS for kind in TYPES if is_possible(way, kind)] if arguments.all else PAIRS
    failed = 0
    for way, kind in pairs:
        if way not in arguments.ways or kind not in arguments.types:
            continue
        found = compare(arguments, way, kind)
        failed += bool(found)
        print(f"{way}, {kind}: {'; '.join(found) or 'the same bits'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
