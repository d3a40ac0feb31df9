"""Makes experts.json and latents.json: 20 steps of a model with experts and of one with latent attention, by transformers.

make_experts.py, with the packages of `./run test`

The model, the optimizer (torch.optim.AdamW) and the loop are those of tests/parity/train_experts.py, which compares
with Concord under many layouts where transformers is installed; what is kept here is for tests without it. Nothing in
these files comes from Concord. experts: hf/qwen3-moe-tiny with transformers' loss that balances experts; latents: a
DeepSeek-V3 (in deepseek-v3-tiny) whose biases of experts stay as they are.
"""

import json
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "parity"))
import latent_attention
import train_experts
from random_models import make_model, save_file, torch, transformers


def sums(tensor):
    flat = tensor.detach().double().flatten()
    ramp = (torch.arange(len(flat)) % 251).double() / 251
    return {"sum": flat.sum().item(), "sumsq": flat.square().sum().item(), "ramp": (flat * ramp).sum().item()}


def write(name, folder, aux, words):
    of = train_experts
    ids = of.make_tokens(json.loads((HERE.parent / folder / "config.json").read_text())["vocab_size"])
    save_file({"input_ids": ids, "labels": ids.clone()}, HERE / f"{name}.safetensors")
    model, steps = of.train_reference(HERE.parent / folder, ids, aux)
    model.save_pretrained(HERE / "made")
    weights = of.load_file(HERE / "made" / "model.safetensors")
    for file in (HERE / "made").iterdir():
        file.unlink()
    (HERE / "made").rmdir()
    golden = {
        "made_by": f"transformers {transformers.__version__}, torch {torch.__version__}", "model": folder, "arguments": words,
        "hyperparameters": {"steps": of.STEPS, "batch": of.BATCH, "micro_batch": of.MICRO, "lr": of.LR, "min_lr": of.MIN_LR,
                            "warmup": of.WARMUP, "betas": of.BETAS, "eps": of.EPS, "weight_decay": of.DECAY, "clip": of.CLIP},
        "steps": [{"step": step, "loss": loss, "grad_norm": norm, "lr": of.lr_at(step)}
                  for step, (loss, norm) in enumerate(steps, 1)],
        "final_weights": {key: sums(weights[key]) for key in sorted(weights)}}
    (HERE / f"{name}.json").write_text(json.dumps(golden, indent=1) + "\n")


def main():
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    write("experts", "hf/qwen3-moe-tiny", train_experts.AUX,
          ["moe_router_load_balancing_type: pooled_aux_loss", f"moe_aux_loss_coeff: {train_experts.AUX}"])
    settings = latent_attention.SETTINGS | {"initializer_range": 0.05}
    make_model("deepseek_v3", settings, 9).float().save_pretrained(HERE / "deepseek-v3-tiny")
    write("latents", "train/deepseek-v3-tiny", 0.0,
          ["moe_router_load_balancing_type: none", "moe_router_bias_update_rate: 0"])


if __name__ == "__main__":
    main()
