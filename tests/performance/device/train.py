"""Training of models of real shapes on a device, compared with transformers in one run.

train.py PROGRAM [--shape qwen2.5-0.5b] [--batch 4] [--length 4096] [--steps 30] [--json FILE]
         [--without compile,eager] [--keep DIR] [--probe] [-- ARGUMENTS of concord train, such as --fp8 hybrid]

Prints tokens per second of `concord train` and of transformers (sdpa, fused AdamW, clipping at 1, bf16), eager and with
torch.compile, the memory in use of the former, and the MFU: 6 N and causal attention, N with the embeddings, relative to
--peak FLOP/s (989.5e12: bf16 on an H200, dense). Warm-up steps are not counted. --probe instead runs a forward and backward pass of each shape with
`concord probe` and prints the loss, which for fresh weights is about log(vocabulary). CONCORD_PLATFORM selects the
platform.
"""

import argparse
import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

SHAPES = {
    "qwen2.5-0.5b": dict(
        model_type="qwen2", architectures=["Qwen2ForCausalLM"], hidden_size=896, intermediate_size=4864,
        num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2, vocab_size=151936, rope_theta=1e6,
        rms_norm_eps=1e-6, tie_word_embeddings=True, max_position_embeddings=32768, hidden_act="silu",
        initializer_range=0.02, torch_dtype="bfloat16"),
    "qwen2.5-1.5b": dict(
        model_type="qwen2", architectures=["Qwen2ForCausalLM"], hidden_size=1536, intermediate_size=8960,
        num_hidden_layers=28, num_attention_heads=12, num_key_value_heads=2, vocab_size=151936, rope_theta=1e6,
        rms_norm_eps=1e-6, tie_word_embeddings=True, max_position_embeddings=32768, hidden_act="silu",
        initializer_range=0.02, torch_dtype="bfloat16"),
    "llama-3.2-1b": dict(
        model_type="llama", architectures=["LlamaForCausalLM"], hidden_size=2048, intermediate_size=8192,
        num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8, head_dim=64, vocab_size=128256,
        rope_theta=5e5, rms_norm_eps=1e-5, tie_word_embeddings=True, max_position_embeddings=131072,
        rope_scaling=dict(rope_type="llama3", factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0,
                          original_max_position_embeddings=8192),
        hidden_act="silu", attention_bias=False, mlp_bias=False, initializer_range=0.02, torch_dtype="bfloat16"),
    # 1.81B parameters, 0.40B of them active.
    "qwen3-moe-1.8b": dict(
        model_type="qwen3_moe", architectures=["Qwen3MoeForCausalLM"], hidden_size=1024, intermediate_size=3072,
        moe_intermediate_size=512, num_experts=64, num_experts_per_tok=8, norm_topk_prob=True, decoder_sparse_step=1,
        mlp_only_layers=[], num_hidden_layers=16, num_attention_heads=16, num_key_value_heads=4, head_dim=64,
        vocab_size=151936, rope_theta=1e6, rms_norm_eps=1e-6, tie_word_embeddings=True, max_position_embeddings=32768,
        hidden_act="silu", attention_bias=False, initializer_range=0.02, router_aux_loss_coef=0.001,
        output_router_logits=False, torch_dtype="bfloat16"),
    "qwen2.5-7b": dict(
        model_type="qwen2", architectures=["Qwen2ForCausalLM"], hidden_size=3584, intermediate_size=18944,
        num_hidden_layers=28, num_attention_heads=28, num_key_value_heads=4, vocab_size=152064, rope_theta=1e6,
        rms_norm_eps=1e-6, tie_word_embeddings=False, max_position_embeddings=32768, hidden_act="silu",
        initializer_range=0.02, torch_dtype="bfloat16"),
    "qwen2.5-14b": dict(
        model_type="qwen2", architectures=["Qwen2ForCausalLM"], hidden_size=5120, intermediate_size=13824,
        num_hidden_layers=48, num_attention_heads=40, num_key_value_heads=8, vocab_size=152064, rope_theta=1e6,
        rms_norm_eps=1e-5, tie_word_embeddings=False, max_position_embeddings=32768, hidden_act="silu",
        initializer_range=0.02, torch_dtype="bfloat16"),
    "tiny": dict(
        model_type="qwen2", architectures=["Qwen2ForCausalLM"], hidden_size=64, intermediate_size=128,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=512, rope_theta=1e4,
        rms_norm_eps=1e-6, tie_word_embeddings=True, max_position_embeddings=512, hidden_act="silu",
        initializer_range=0.02, torch_dtype="bfloat16"),
}


def parameters(shape):
    """Those that a token meets: of experts the chosen ones."""
    hidden, layers = shape["hidden_size"], shape["num_hidden_layers"]
    size = shape.get("head_dim", hidden // shape["num_attention_heads"])
    q, kv = size * shape["num_attention_heads"], size * shape["num_key_value_heads"]
    if "num_experts" in shape:
        mlp = shape["num_experts_per_tok"] * 3 * hidden * shape["moe_intermediate_size"] + hidden * shape["num_experts"]
    else:
        mlp = 3 * hidden * shape["intermediate_size"]
    layer = hidden * (q + 2 * kv) + q * hidden + mlp
    return layers * layer + hidden * shape["vocab_size"]


def flops_of_token(shape, length):
    size = shape.get("head_dim", shape["hidden_size"] // shape["num_attention_heads"])
    attention = 6 * shape["num_hidden_layers"] * size * shape["num_attention_heads"] * length  # causal: half of 12
    return 6 * parameters(shape) + attention


def write_inputs(folder, shape, rows, length):
    (folder / "config.json").write_text(json.dumps(shape))
    torch.manual_seed(1)
    ids = torch.randint(0, shape["vocab_size"], (rows, length))
    save_file({"input_ids": ids, "labels": ids.clone()}, str(folder / "data.safetensors"))
    return ids


def ours(program, folder, args, more=(), model=None, data=None):
    """Trains a fresh model of folder/config.json on folder/data.safetensors, unless |model| and |data| replace them."""
    command = [program, "train", "--nproc", "1", *(model or ["--model_config", folder / "config.json"]), "--train_data",
               data or folder / "data.safetensors", "--seq_length", args.length, "--per_device_train_batch_size",
               args.batch, "--max_steps", args.warmup + args.steps, "--bf16", "--learning_rate", 1e-4,
               "--logging_steps", args.warmup, "--save_strategy", "no", "--output_dir", folder / "run", "--report_to",
               "none", "--overwrite_output_dir", "true", *more]
    ended = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if ended.returncode != 0:
        raise RuntimeError(f"concord train failed:\n{ended.stdout[-2000:]}\n{ended.stderr[-4000:]}")
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    rates = sorted(line["tokens_per_second"] for line in lines[1:] if "tokens_per_second" in line)
    losses = [line["loss"] for line in lines if "loss" in line]
    return {"tokens_per_second": rates[len(rates) // 2], "slowest": rates[0], "fastest": rates[-1],
            "last_loss": losses[-1], "memory_bytes": max(line.get("memory_bytes", 0) for line in lines)}


def theirs(shape, ids, args, compiled):
    from transformers import AutoConfig, AutoModelForCausalLM
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(shape))
        config = AutoConfig.from_pretrained(folder)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.bfloat16).to(device)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    forward = torch.compile(model) if compiled else model
    batches = ids.to(device).split(args.batch)
    wait = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
    for step in range(args.warmup + args.steps):
        if step == args.warmup:
            wait()
            begin = time.perf_counter()
        batch = batches[step % len(batches)]
        loss = forward(input_ids=batch, labels=batch, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    wait()
    rate = args.steps * args.batch * args.length / (time.perf_counter() - begin)
    return {"tokens_per_second": rate, "last_loss": loss.item()}


def probe(program, args):
    for name in ("qwen2.5-0.5b", "llama-3.2-1b") if not args.shape_given else (args.shape,):
        shape = SHAPES[name]
        with tempfile.TemporaryDirectory() as path:
            folder = Path(path)
            write_inputs(folder, shape, 1, args.length if args.shape_given else 1024)
            dump = folder / "dump.safetensors"
            command = [program, "probe", "--model_config", folder / "config.json", "--batch",
                       folder / "data.safetensors", "--out", dump, "--dtype", "bfloat16", "--grads"]
            begin = time.perf_counter()
            subprocess.run([str(word) for word in command], check=True)
            seconds = time.perf_counter() - begin
            made = load_file(str(dump))
            loss, expected = made["loss"].item(), math.log(shape["vocab_size"])
            wrong = [key for key, value in made.items() if not value.isfinite().all()]
            print(f"{name}: {parameters(shape) / 1e6:.0f}M parameters, loss {loss:.3f}, log(vocabulary) {expected:.3f}, "
                  f"{len(made)} tensors dumped, {len(wrong)} of them not finite, {seconds:.1f} s")
            # Logits of fresh weights have a variance of hidden * 0.02^2 (times tied embeddings'): half of it is added.
            if wrong or not expected - 0.1 < loss < expected + 1:
                sys.exit(f"{name}: {wrong or 'that loss is none of fresh weights'}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--shape", choices=SHAPES)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--peak", type=float, default=989.5e12)
    parser.add_argument("--without", default="")
    parser.add_argument("--keep", help="copy the output folder of concord train to this one")
    parser.add_argument("--json", default="")
    parser.add_argument("--probe", action="store_true")
    words = sys.argv[1:] + ([] if "--" in sys.argv else ["--"])
    args, more = parser.parse_args(words[:words.index("--")]), words[words.index("--") + 1:]
    args.shape_given = args.shape is not None
    args.shape = args.shape or "qwen2.5-0.5b"
    if args.probe:
        return probe(args.program, args)
    shape = SHAPES[args.shape]
    results = {}
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        ids = write_inputs(folder, shape, args.batch * 8, args.length)
        results["concord"] = ours(args.program, folder, args, more)
        if args.keep:
            shutil.copytree(folder / "run", args.keep, dirs_exist_ok=True)
        for name in ("eager", "compile"):
            if name not in args.without.split(","):
                results[f"transformers {name}"] = theirs(shape, ids, args, name == "compile")
    for name, result in results.items():
        rate = result["tokens_per_second"]
        result["mfu"] = rate * flops_of_token(shape, args.length) / args.peak
        result["ratio"] = results["concord"]["tokens_per_second"] / rate
        print(f"{name:22} {rate:10.0f} tokens/s  MFU {100 * result['mfu']:5.1f} %  ours / this {result['ratio']:.2f}  "
              f"last loss {result['last_loss']:.4f}"
              + (f"  memory {result['memory_bytes'] / 2**30:.1f} GiB" if "memory_bytes" in result else ""), flush=True)
    if args.json:
        Path(args.json).write_text(json.dumps({"shape": args.shape, "batch": args.batch, "length": args.length,
                                               "results": results}, indent=2) + "\n")
    return None


if __name__ == "__main__":
    sys.exit(main())
