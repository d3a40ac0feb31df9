#!/usr/bin/env python3
"""Counts launches and bytes of a training step on the simulated CANN: work_counts.py PROGRAM [--shape dense|experts]
[--tokens N] [--ranks N] [--operators step|layer] [--micro_batch] [--most_launches N] [--most_step_launches N]
[--most_bytes RATIO] [--transformers bf16|autocast]

Trains Qwen2.5-0.5B cut to a few layers and 1024 words, or a small Qwen3-MoE, in bf16, with --tokens (512) per step,
and prints the work of one step with 2 layers and of what the second layer adds to it (docs/ascend.md), on rank 0. Needs
the simulated CANN on the library path, CONCORD_PLATFORM=ascend and CONCORD_PLUGIN_PATH. Results are labelled sim-npu.
With --micro_batch the work is that of one more micro-batch in a step: forward, backward and the addition of gradients,
without the optimizer. For a layer of the dense model on one rank the bytes of the same tensors in the kernels of
backends/cuda follow, and the ratio. With --most_launches it fails if a layer takes more launches, with
--most_step_launches if a step does, with --most_bytes if the ratio is larger. With --transformers it counts the same
for transformers on torch_npu (transformers_steps.py), and prints the ratios.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

MAX_TOKENS = 512
DENSE = dict(
    model_type="qwen2", architectures=["Qwen2ForCausalLM"], hidden_size=896, intermediate_size=4864,
    num_attention_heads=14, num_key_value_heads=2, vocab_size=1024, max_position_embeddings=MAX_TOKENS, rope_theta=1e6,
    rms_norm_eps=1e-6, tie_word_embeddings=True, hidden_act="silu", initializer_range=0.02)
EXPERTS = dict(
    DENSE, model_type="qwen3_moe", architectures=["Qwen3MoeForCausalLM"], hidden_size=512, intermediate_size=1536,
    moe_intermediate_size=256, num_attention_heads=8, num_key_value_heads=2, head_dim=64, num_experts=16,
    num_experts_per_tok=4, norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[], attention_bias=False,
    router_aux_loss_coef=0.001, output_router_logits=False, tie_word_embeddings=False)
PEER = Path(__file__).with_name("transformers_steps.py")
SHAPES = {"dense": DENSE, "experts": EXPERTS}


def train(arguments, folder, layers, steps, micro_batches, precision):
    """Returns the report of the work of rank 0, as {operator: (launches, bytes)}. |precision|: trains in transformers."""
    out = folder / f"{layers}-{steps}-{micro_batches}{precision or ''}"
    out.mkdir()
    (out / "config.json").write_text(json.dumps({**SHAPES[arguments.shape], "num_hidden_layers": layers}))
    with (out / "data.jsonl").open("w") as file:
        for row in range(8):
            tokens = [(row * 31 + token * 7 + token * token) % 1024 for token in range(arguments.tokens)]
            file.write(json.dumps({"input_ids": tokens}) + "\n")
    peer = [sys.executable, "-B", PEER, out, steps, micro_batches, precision]
    own = [arguments.program, "train", "--nproc", arguments.ranks, "--tensor_model_parallel_size", arguments.ranks,
           "--sequence_parallel", str(arguments.ranks > 1).lower(), "--model_config", out / "config.json",
           "--train_data", out / "data.jsonl", "--output_dir", out / "run", "--seq_length", arguments.tokens,
           "--per_device_train_batch_size", 1, "--gradient_accumulation_steps", micro_batches, "--max_steps", steps,
           "--save_strategy", "no", "--logging_steps", 1, "--bf16", "true", "--disable_tqdm", "true",
           "--report_to", "none", *arguments.options]
    words = peer if precision else own
    report = out / "work.json"
    environment = {**os.environ, "CONCORD_SIM_NPU_REPORT": str(report), "CONCORD_LOG": "warn"}
    done = subprocess.run([str(word) for word in words], env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    work = json.loads(report.read_text())
    assert work["label"] == "sim-npu", work["label"]
    return {name: (each["launches"], each["bytes_read"] + each["bytes_written"])
            for name, each in work["operators"].items()}


def difference(more, less):
    names = {name: tuple(a - b for a, b in zip(more[name], less.get(name, (0, 0)))) for name in more}
    return {name: each for name, each in names.items() if each != (0, 0)}


def total(work):
    return tuple(sum(each[i] for each in work.values()) for i in (0, 1))


def step(arguments, folder, layers, precision):
    def of(micro_batches):
        return difference(*(train(arguments, folder, layers, steps, micro_batches, precision) for steps in (3, 2)))
    return difference(of(2), of(1)) if arguments.micro_batch else of(1)


def measured(arguments, folder, precision=None):
    """Returns the work with two layers, and what the second one adds."""
    one, two = (step(arguments, folder, layers, precision) for layers in (1, 2))
    return two, difference(two, one)


def cuda_layer(tokens):
    """Returns the bytes that the kernels of backends/cuda read and write for a layer of DENSE and one more micro-batch,
    by kernel: each tensor once, as the simulator counts. t tokens, h hidden size, q columns of queries, p of queries,
    keys and values, f inner size of the MLP."""
    t, h, f = tokens, DENSE["hidden_size"], DENSE["intermediate_size"]
    head = h // DENSE["num_attention_heads"]
    q, p = h, h + 2 * head * DENSE["num_key_value_heads"]
    half, wide = 2, 4
    angles, rstd, lse = wide * t * head, wide * t, wide * t * DENSE["num_attention_heads"]

    def linear(columns, rows, bias):  # [t, rows] -> [t, columns]; gradients of weights are added to fp32
        forward = half * (t * rows + columns * rows + t * columns + bias * columns)
        input_grad = half * (t * columns + columns * rows + t * rows)
        weight_grad = half * (t * columns + t * rows) + 2 * wide * columns * rows
        bias_grad = half * bias * (t * columns + columns)
        return forward + input_grad + weight_grad + bias_grad

    norm = half * (4 * t * h + h) + rstd + half * (4 * t * h + 2 * h) + rstd  # sums and both directions
    return {
        "norms": 2 * norm,
        "products": linear(p, h, 1) + linear(h, q, 0) + linear(2 * f, h, 0) + linear(h, f, 0),
        "rotations": 2 * (half * 2 * t * p + angles),
        "attention": half * t * (p + q) + lse + half * t * (2 * p + 2 * q) + lse,
        "swiglu": half * 3 * t * f + half * 5 * t * f,
        "gradients of vectors": (half + 2 * wide) * (2 * h + p),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--shape", choices=SHAPES, default="dense")
    parser.add_argument("--tokens", type=int, default=MAX_TOKENS)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--operators", choices=["step", "layer"], help="also print each operator")
    parser.add_argument("--micro_batch", action="store_true", help="one more micro-batch instead of a step")
    parser.add_argument("--most_launches", type=int)
    parser.add_argument("--most_step_launches", type=int)
    parser.add_argument("--most_bytes", type=float)
    parser.add_argument("--transformers", choices=["bf16", "autocast"])
    parser.add_argument("options", nargs="*", help="further arguments of concord train")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        two, layer = measured(arguments, Path(name))
        peers = measured(arguments, Path(name), arguments.transformers) if arguments.transformers else None
    whole = "micro-batch" if arguments.micro_batch else "step"
    for title, work in ((whole, two), ("layer", layer)):
        launches, size = total(work)
        print(f"[sim-npu] {title}: {launches} launches, {size / 1e9:.3f} GB")
        if arguments.operators == ("layer" if title == "layer" else "step"):
            for operator, (count, moved) in sorted(work.items(), key=lambda each: -each[1][0]):
                print(f"  {operator:44} {count:5} {moved / 1e6:10.1f} MB")
    if peers:
        for title, ours, theirs in zip((whole, "layer"), (two, layer), peers):
            (launches, size), (count, moved) = total(theirs), total(ours)
            print(f"[sim-npu] transformers ({arguments.transformers}), {title}: {launches} launches, "
                  f"{size / 1e9:.3f} GB; Concord's part of these: {count / launches:.2f} and {moved / size:.2f}")
    if arguments.micro_batch and arguments.shape == "dense" and arguments.ranks == 1:
        cuda = cuda_layer(arguments.tokens)
        ratio = total(layer)[1] / sum(cuda.values())
        print(f"layer of backends/cuda, computed: {sum(cuda.values()) / 1e9:.3f} GB "
              f"({', '.join(f'{name} {size / 1e6:.1f} MB' for name, size in cuda.items())}); ratio {ratio:.3f}")
        if arguments.most_bytes is not None and ratio > arguments.most_bytes:
            sys.exit(f"a layer moves {ratio:.3f} of the bytes of backends/cuda: more than {arguments.most_bytes}")
    for title, work, most in (("layer", layer, arguments.most_launches), ("step", two, arguments.most_step_launches)):
        if most is not None and total(work)[0] > most:
            sys.exit(f"a {title} takes {total(work)[0]} launches, which is more than {most}")


if __name__ == "__main__":
    main()
