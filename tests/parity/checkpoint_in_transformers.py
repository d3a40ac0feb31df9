"""transformers reads a checkpoint in place: checkpoint_in_transformers.py PROGRAM

Trains a tiny model for three steps in fp32 and in bf16, on one rank and on two, and opens checkpoint-2 of each run,
which also contains the optimizer's files and the metadata, with AutoModelForCausalLM.from_pretrained: no tensor is
missing or left over, the weights are bitwise those of the files, and the logits are those of `concord probe` on the
same folder. The same for shards: those that transformers writes, and those of `concord train --max_shard_size`. Exit
code 77: transformers is missing.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import preloaded

try:
    import torch
    import transformers
    from safetensors.torch import load_file, save_file
except ImportError as missing:
    print(f"skipped: {missing}; install torch, transformers and safetensors for this Python")
    sys.exit(77)

MODEL = Path(__file__).parent.parent / "golden/hf/qwen2-tiny"
# Norm of the difference / norm of the reference. In float64 what is left is transformers' own rounding: it has norms and
# softmax in float32 even then.
BOUND = 5e-6
RUNS = {
    "fp32": [],
    "bf16": ["--bf16"],
    "fp32 on two ranks": ["--nproc", "2", "--tensor_model_parallel_size", "2"],
    "bf16 on two ranks": ["--nproc", "2", "--bf16", "--use_distributed_optimizer"],
}


def run(*command):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CONCORD_LOG": "warn"}
    done = preloaded.run(command, environment)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def stored(folder):
    """Returns all tensors of the model's files, and the number of files."""
    tensors, files = {}, sorted(folder.glob("model*.safetensors"))
    for file in files:
        tensors |= load_file(str(file))
    return tensors, len(files)


def compare(program, folder, batch, dtype, least_files):
    tensors, files = stored(folder)
    if files < least_files:
        raise AssertionError(f"{folder} has {files} files; at least {least_files} were expected")
    if {tensor.dtype for tensor in tensors.values()} != {dtype}:
        raise AssertionError(f"{folder} has tensors that are not {dtype}")
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager", output_loading_info=True)
    problems = {key: value for key, value in info.items() if value}
    if problems:
        raise AssertionError(f"{folder}: transformers reports {problems}")
    loaded = model.state_dict()
    for name, tensor in tensors.items():
        if not torch.equal(loaded[name], tensor.double()):
            raise AssertionError(f"{folder}: {name} is not what is in the file")
    with torch.no_grad():
        expected = model(input_ids=load_file(str(batch))["input_ids"]).logits
    dump = folder.parent / "dump.safetensors"
    run(program, "probe", "--overwrite", "--model", folder, "--batch", batch, "--out", dump, "--dtype", "float64")
    share = ((load_file(str(dump))["logits"].double() - expected).norm() / expected.norm()).item()
    if not share <= BOUND:
        raise AssertionError(f"{folder}: logits differ by {share:.3g}, bound {BOUND:g}")
    return share, files, model


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    program = parser.parse_args().program
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    has_shards = "max_shard_size" in run(program, "train", "--help")
    with tempfile.TemporaryDirectory(prefix="concord-transformers-") as name:
        folder = Path(name)
        data, batch = folder / "data.jsonl", folder / "batch.safetensors"
        data.write_text("".join(json.dumps({"input_ids": [(i * 31 + t * 7) % 300 for t in range(16)]}) + "\n" for i in range(64)))
        ids = torch.tensor([[(i * 13 + t * 5) % 300 for t in range(24)] for i in range(2)])
        save_file({"input_ids": ids, "labels": ids.clone()}, str(batch))
        runs = [(name, words, 1) for name, words in RUNS.items()]
        if has_shards:
            runs += [(f"{name}, in shards", words + ["--max_shard_size", "200KB"], 3) for name, words in RUNS.items()]
        for number, (name, words, least_files) in enumerate(runs):
            output, dtype = folder / str(number), torch.bfloat16 if "bf16" in name else torch.float32
            run(program, "train", "--model", MODEL, "--train_data", data, "--output_dir", output, "--max_steps", 3, "--save_steps", 1,
                "--per_device_train_batch_size", 1, "--learning_rate", "1e-2", *words)
            share, files, model = compare(program, output / "checkpoint-2", batch, dtype, least_files)
            print(f"{name}: {files} files, logits within {share:.2g} of transformers'", flush=True)
            if "two" not in name and least_files == 1:
                shards = folder / f"{number}-shards"
                model.to(dtype).save_pretrained(shards, max_shard_size="150KB")
                share, files, _ = compare(program, shards, batch, dtype, 3)
                print(f"{name}, shards of transformers: {files} files, logits within {share:.2g}", flush=True)


if __name__ == "__main__":
    main()
