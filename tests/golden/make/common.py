"""Helpers of every make_*.py: reading the spec, naming, writing, checksums.

Each maker is called as `.venv/bin/python make_X.py FOLDER` and writes FOLDER/X; see ../README.md.
"""
import json
import os
import re
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")
import torch
from safetensors.torch import save_file

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)

ROOT = sys.argv[1]
HERE = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(HERE, "spec.json")) as _file:
    SPEC = json.load(_file)
sys.path.append(os.path.join(sys.prefix, "peers"))  # where ./run installs megatron-core


def path(*parts):
    p = os.path.join(ROOT, *parts)
    os.makedirs(os.path.dirname(p), exist_ok=True)
    return p


def write_json(obj, *parts):
    with open(path(*parts), "w") as f:
        json.dump(obj, f, indent=1)
        f.write("\n")


def write_tensors(tensors, *parts):
    out = {}
    for name, t in tensors.items():
        t = t.detach()
        out[name] = (t.reshape(1) if t.dim() == 0 else t).contiguous().clone()
    save_file(out, path(*parts))


def generator(*seeds):
    """A torch generator seeded by several numbers."""
    s = 0
    for x in seeds:
        s = (s * 1000003 + x + 1) % (2**63 - 1)
    return torch.Generator().manual_seed(s)


def token_batch(gen, shape, vocab, drop=0.2):
    """Random ids, and HF-style labels: a copy of the ids in which some are -100.
    The loss shifts inside the model: logits[:, t] is scored against labels[:, t + 1]."""
    ids = torch.randint(0, vocab, shape, generator=gen)
    labels = ids.clone()
    labels[torch.rand(shape, generator=gen) < drop] = -100
    labels[-1, : shape[1] // 4] = -100                 # a masked prompt in the last row
    return ids, labels


def disk_name(model_type, name, tensor):
    """In-memory parameter -> {name in model.safetensors: tensor}.  transformers 5 keeps a layer's
    experts fused in memory ([E, 2I, H] and [E, H, I]) but writes one tensor per expert."""
    moe = "block_sparse_moe" if model_type == "mixtral" else "mlp"
    gate, up, down = ("w1", "w3", "w2") if model_type == "mixtral" else ("gate_proj", "up_proj", "down_proj")
    m = re.fullmatch(r"(model\.layers\.\d+)\.mlp\.experts\.(gate_up_proj|down_proj)", name)
    if m:
        out = {}
        for e, t in enumerate(tensor):
            key = f"{m[1]}.{moe}.experts.{e}."
            if m[2] == "down_proj":
                out[key + down + ".weight"] = t
            else:
                out[key + gate + ".weight"], out[key + up + ".weight"] = t.chunk(2, dim=0)
        return out
    if model_type == "mixtral":
        name = name.replace(".mlp.", ".block_sparse_moe.")
    return {name: tensor}


def on_disk(model, get):
    """Every parameter of a model under its on-disk name; get(p) picks the data or the gradient."""
    out = {}
    for name, p in model.named_parameters():
        out.update(disk_name(model.config.model_type, name, get(p)))
    return out


def gradients(model, prefix="grad."):
    return {prefix + k: v.clone() for k, v in on_disk(model, lambda p: p.grad).items()}


def load_model(name):
    from transformers import AutoModelForCausalLM
    return AutoModelForCausalLM.from_pretrained(
        os.path.join(ROOT, "hf", name), dtype=torch.float32, attn_implementation="eager").eval()


def checksum(t):
    """sum, sum of squares, and a position-aware sum: sum_i w_i * (i mod 251) / 251, in float64."""
    w = t.detach().double().reshape(-1)
    ramp = (torch.arange(w.numel(), dtype=torch.float64) % 251) / 251
    return {"shape": list(t.shape), "sum": w.sum().item(), "sumsq": (w * w).sum().item(),
            "ramp": (w * ramp).sum().item()}
