"""Concord compared with LLMQ (IST-DASLab/llmq) on a device, in turn in one run.

llmq.py PROGRAM SOURCE [--build DIR] [--dependencies DIR] [--shape qwen2.5-0.5b] [--batch 4] [--length 4096] [--steps 25]
        [--rounds 1] [--json FILE] [--dry_run]

Builds LLMQ from its source folder, for this machine's GPU, with the NCCL and cuDNN of the installed torch. DIR of
--dependencies has what LLMQ would download: json, cudnn-fe, cli11, fmt and catch2, one folder each. Then `concord train`
and LLMQ with the settings of its benchmarks (bf16 moments) and with fp32 moments train the same shape on random tokens.
Prints tokens per second, the median after the warm-up. --dry_run prints the commands. CONCORD_PLATFORM selects the platform.
"""

import argparse
import json
import os
import statistics
import struct
import subprocess
import tempfile
from pathlib import Path

import torch

import train

DEPENDENCIES = ("json", "cudnn-fe", "cli11", "fmt", "catch2")
MOMENTS = ("bf16", "fp32")


def run(command, args, **more):
    if args.dry_run:
        print(" ".join(map(str, command)))
    else:
        subprocess.run([str(word) for word in command], check=True, **more)


def wheel_libraries(build):
    """Links NCCL and cuDNN of torch's wheels under the names that a linker looks for; returns LLMQ's variables."""
    wheels = Path(torch.__file__).parent.parent / "nvidia"
    links = build / "libraries"
    links.mkdir(parents=True, exist_ok=True)
    for name in ("nccl", "cudnn"):
        for library in (wheels / name / "lib").glob(f"lib{name}.so.*"):
            link = links / f"lib{name}.so"
            link.unlink(missing_ok=True)
            link.symlink_to(library)
    return {**os.environ, "NCCL_INCLUDE_DIR": str(wheels / "nccl/include"), "NCCL_LIB_DIR": str(links),
            "CUDNN_INCLUDE_PATH": str(wheels / "cudnn/include"), "CUDNN_LIBRARY_PATH": str(links),
            "LD_LIBRARY_PATH": ":".join([str(wheels / "nccl/lib"), str(wheels / "cudnn/lib"), os.environ.get("LD_LIBRARY_PATH", "")])}


def build_llmq(args, variables):
    options = [f"-DFETCHCONTENT_SOURCE_DIR_{name.upper()}={args.dependencies / name}" for name in DEPENDENCIES
               if args.dependencies]
    run(["cmake", "-S", args.source, "-B", args.build, "-DCMAKE_BUILD_TYPE=Release", "-DUSE_CUFILE=OFF", "-DUSE_NVML=OFF",
         "-DUSE_MPI=OFF", "-DBUILD_TESTS=OFF", *options], args, env=variables)
    run(["cmake", "--build", args.build, "--parallel", "--target", "train"], args, env=variables)


def write_tokens(file, tokens):
    header = b"BIN.TOK\n" + struct.pack("<3i", 1, 4, tokens.numel())
    file.write_bytes(header.ljust(1024, b"\0") + tokens.to(torch.int32).numpy().tobytes())


def run_llmq(args, folder, moments, variables):
    log = folder / "llmq.json"
    run([args.build / "train", f"--model={folder}", "--from-scratch", f"--train-file={folder / 'train.bin'}",
         f"--eval-file={folder / 'eval.bin'}", f"--seq-len={args.length}", f"--batch-size={args.batch}",
         "--grad-accumulation=1", f"--steps={args.warmup + args.steps}", "--model-dtype=bf16", "--matmul-dtype=bf16",
         f"--opt-m-dtype={moments}", f"--opt-v-dtype={moments}", "--learning-rate=1e-4", "--gpus=1", "--use-cuda-graphs",
         "--eval-every-n-steps=100000", "--ckpt-interval=100000", f"--out-dir={folder / 'out'}",
         f"--checkpoint-dir={folder / 'checkpoints'}", f"--log-file={log}"], args, env=variables, stdout=subprocess.DEVNULL)
    if args.dry_run:
        return float("nan")
    lines = (json.loads(line.strip().rstrip(",")) for line in log.read_text().splitlines() if '"log": "step"' in line)
    rates = [1000 * line["step_tokens"] / line["duration_ms"] for line in lines]
    return statistics.median(rates[args.warmup:])


def measure(args, folder, variables):
    shape = dict(train.SHAPES[args.shape], bos_token_id=0, eos_token_id=1)
    rows = args.batch * (args.warmup + args.steps) + 1
    ids = train.write_inputs(folder, shape, rows, args.length)
    write_tokens(folder / "train.bin", ids.flatten())
    write_tokens(folder / "eval.bin", ids[:args.batch + 1].flatten())
    rates = {"concord": [], **{f"LLMQ, {moments} moments": [] for moments in MOMENTS}}
    for _ in range(args.rounds):
        if not args.dry_run:
            rates["concord"].append(train.ours(args.program, folder, args)["tokens_per_second"])
        for moments in MOMENTS:
            rates[f"LLMQ, {moments} moments"].append(run_llmq(args, folder, moments, variables))
    return rates


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("source", type=Path)
    parser.add_argument("--build", type=Path, default=Path("build-llmq"))
    parser.add_argument("--dependencies", type=Path)
    parser.add_argument("--shape", choices=[name for name in train.SHAPES if "moe" not in name], default="qwen2.5-0.5b")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--dry_run", action="store_true")
    args = parser.parse_args()
    variables = wheel_libraries(args.build)
    build_llmq(args, variables)
    with tempfile.TemporaryDirectory() as path:
        rates = measure(args, Path(path), variables)
    if args.dry_run:
        return
    best = {name: statistics.median(values) for name, values in rates.items()}
    for name, rate in best.items():
        print(f"{name:20} {rate:9.0f} tokens/s  Concord / this {best['concord'] / rate:.3f}", flush=True)
    if args.json:
        args.json.write_text(json.dumps({"shape": args.shape, "batch": args.batch, "length": args.length, "rates": rates}, indent=2) + "\n")


if __name__ == "__main__":
    main()
