"""Optimizer state in 8-bit codes by `concord train`, compared with torchao's OptimState8bit.

state_codes.py PROGRAM

The first update starts from zero moments and uses them before they are rounded, so a run with 8-bit state computes the
same moments as one with fp32 state. Each layout trains one step in both: codes and scales of the checkpoint have to be
bit for bit those of torchao's functions for the moments in fp32. Then two steps have to be those of one step and a
resumed one. The fractions are made with ATEN_CPU_CAPABILITY=default: libtorch's vectorised linspace depends on the width
of vectors. Exit code 77: torchao or transformers is missing, nothing was compared.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import preloaded

sys.path.insert(0, str(Path(__file__).parent))
from random_models import load_file, make_model, save_file, torch  # exits with 77 if missing

BLOCK, SMALL = 256, 4096
# Rows of 512 or 768 elements: with tp 2 a rank has whole blocks of each.
LLAMA = {"vocab_size": 64, "hidden_size": 512, "intermediate_size": 768, "num_hidden_layers": 1, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.1, "tie_word_embeddings": False,
         "pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
LAYOUTS = {
    "one process": (1, ["per_device_train_batch_size: 4"]),
    "lion": (1, ["per_device_train_batch_size: 4", "optimizer: lion"]),
    "muon, bf16": (1, ["per_device_train_batch_size: 4", "optimizer: muon", "bf16: true"]),
    "dp 2, distributed optimizer": (2, ["use_distributed_optimizer: true", "per_device_train_batch_size: 2"]),
    "tp 2, offload": (2, ["tensor_model_parallel_size: 2", "per_device_train_batch_size: 4", "optimizer_cpu_offload: true",
                          "optimizer_offload_fraction: 0.5"]),
}
CODES = ["exp_avg_dtype: 8bit", "exp_avg_sq_dtype: 8bit"]


def peer():
    path = Path(sys.prefix) / "peers" / "torchao" / "optim" / "quant_utils.py"
    if not path.exists():
        print(f"skipped: {path} is missing; ./run installs it")
        sys.exit(77)
    spec = importlib.util.spec_from_file_location("quant_utils", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, path


def fractions(path):
    """Returns torchao's signed and unsigned map."""
    program = ("import json, runpy, sys; make = runpy.run_path(sys.argv[1])['create_dynamic_map'];"
               "print(json.dumps([make(True), make(False)]))")
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True,
                          env=os.environ | {"ATEN_CPU_CAPABILITY": "default"})
    return [torch.tensor(values) for values in json.loads(done.stdout)]


def train(program, folder, world, words, out, steps):
    config = [f"model: {folder}/model", f"train_data: {folder}/data.safetensors", f"output_dir: {folder}/{out}",
              "shuffle: false", f"max_steps: {steps}", "learning_rate: 1e-2", "lr_scheduler_type: constant",
              "weight_decay: 0.1", "adam_beta2: 0.95", "save_steps: 1", "report_to: [none]", *words]
    file = folder / "run.yaml"
    file.write_text("\n".join(config) + "\n")
    done = preloaded.run([program, "train", "--config", str(file), "--nproc", str(world)])
    assert done.returncode == 0, f"{config}\n{done.stderr}"
    return folder / out / f"checkpoint-{steps}" / "optimizer.safetensors"


def compare(name, wide, codes, torchao, maps):
    """Returns the number of values in codes."""
    compared = 0
    for key, values in wide.items():
        moment = key.split(".")[0]
        if moment == "main" or values.numel() < SMALL or values.numel() % BLOCK:
            assert torch.equal(codes[key], values), f"{name}: {key} is not in fp32"
            continue
        scaled, scales = torchao.scale_tensor(values.flatten(), BLOCK)
        wanted = torchao.quantize_8bit_with_qmap(scaled, maps[moment == "exp_avg_sq"])
        found = codes[key].flatten()
        assert found.dtype == torch.uint8, f"{name}: {key} is {found.dtype}"
        tensor = key.removeprefix(moment + ".")
        assert torch.equal(codes[f"{moment}.absmax.{tensor}"], scales), f"{name}: scales of {key}"
        different = (found != wanted).sum().item()
        assert different == 0, f"{name}: {different} of {found.numel()} codes of {key} differ"
        compared += values.numel()
    return compared


def main():
    program = sys.argv[1]
    torchao, path = peer()
    maps = fractions(path)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make_model("llama", LLAMA, 1).float().save_pretrained(folder / "model")
        ids = torch.randint(0, 64, (16, 16))
        save_file({"input_ids": ids, "labels": ids.clone()}, folder / "data.safetensors")
        for index, (name, (world, words)) in enumerate(LAYOUTS.items()):
            wide = load_file(train(program, folder, world, words, f"{index}-wide", 1))
            codes = load_file(train(program, folder, world, words + CODES, f"{index}-codes", 1))
            compared = compare(name, wide, codes, torchao, maps)
            assert compared > 0, f"{name}: nothing is in codes"
            whole = load_file(train(program, folder, world, words + CODES, f"{index}-whole", 2))
            resume = [f"resume_from_checkpoint: {folder}/{index}-codes/checkpoint-1"]
            again = load_file(train(program, folder, world, words + CODES + resume, f"{index}-again", 2))
            for key, values in whole.items():
                assert torch.equal(values, again[key]), f"{name}: {key} differs after a resume"
            print(f"{name}: {compared} codes are torchao's, and a resumed run has the same state", flush=True)


if __name__ == "__main__":
    main()
