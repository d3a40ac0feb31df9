"""An MoE model trained by `concord train` over several ranks, compared with transformers and torch.optim.AdamW.

train_experts.py PROGRAM MODEL

MODEL is a folder with a small model; after it a random GPT-OSS is trained, whose experts have biases and are one tensor
per layer. 20 steps of 8 samples in float32, with warm-up, cosine decay, weight decay, clipping and transformers' load
balancing loss, for each micro-batch of two samples. Compares all losses, gradient norms and final weights. Exit code
77: transformers is missing, nothing was compared.
"""

import argparse
import json
import math
import sys
import tempfile
from pathlib import Path

import preloaded

sys.path.insert(0, str(Path(__file__).parent))
from largest import largest
from random_models import load_file, make_model, save_file, torch, transformers  # exits with 77 if missing

STEPS, BATCH, MICRO, LENGTH = 20, 8, 2, 32
LR, MIN_LR, WARMUP, BETAS, EPS, DECAY, CLIP, AUX = 1e-3, 1e-4, 5, (0.9, 0.95), 1e-8, 0.1, 1.0, 0.02
# Bounds for float32 in 20 steps, ten times the measured differences; relative to the reference for norms and weights.
LOSS, NORM, WEIGHT = 7e-6, 3e-6, 1e-6
LOADED = 1e-4  # bound for logits, after weights that differ by WEIGHT
LAYOUTS = {
    "dp 4, ep 2, distributed optimizer": (4, ["expert_model_parallel_size: 2", "use_distributed_optimizer: true"]),
    "tp 2, dp 2, ep 4": (4, ["tensor_model_parallel_size: 2", "sequence_parallel: true",
                             "expert_model_parallel_size: 4", "expert_tensor_parallel_size: 1",
                             "gradient_accumulation_steps: 2"]),
    "pp 2, dp 2": (4, ["pipeline_model_parallel_size: 2", "gradient_accumulation_steps: 2"]),
}


GPT_OSS = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
           "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "sliding_window": 5,
           "num_local_experts": 4, "num_experts_per_tok": 2, "swiglu_limit": 2.0, "initializer_range": 0.1,
           "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "truncate": False,
                               "original_max_position_embeddings": 16},
           "pad_token_id": None, "bos_token_id": None, "eos_token_id": None}


def lr_at(step):  # learning rate of the update |step|, starting at 1
    if step <= WARMUP:
        return LR * step / WARMUP
    done = (step - WARMUP) / (STEPS - WARMUP)
    return MIN_LR + 0.5 * (LR - MIN_LR) * (1 + math.cos(math.pi * done))


def make_tokens(vocabulary):
    """Three of four tokens follow from the previous one, so that there is something to train on."""
    torch.manual_seed(7)
    ids = torch.randint(0, vocabulary, (STEPS * BATCH, LENGTH))
    for t in range(1, LENGTH):
        follows = torch.rand(len(ids)) < 0.75
        ids[:, t] = torch.where(follows, (7 * ids[:, t - 1] + 3) % vocabulary, ids[:, t])
    return ids


def make_optimizer(model):
    is_decayed = {name: p.dim() >= 2 and not name.endswith("bias") for name, p in model.named_parameters()}
    decayed = [p for name, p in model.named_parameters() if is_decayed[name]]
    others = [p for name, p in model.named_parameters() if not is_decayed[name]]
    return torch.optim.AdamW([{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}],
                             betas=BETAS, eps=EPS, foreach=False, fused=False)


def train_reference(folder, ids, aux):
    with_loss = {"output_router_logits": True, "router_aux_loss_coef": aux} if aux > 0 else {}
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                              **with_loss)
    optimizer = make_optimizer(model)
    steps = []
    for step in range(1, STEPS + 1):
        for group in optimizer.param_groups:
            group["lr"] = lr_at(step)
        optimizer.zero_grad()
        loss = 0.0
        parts = ids[(step - 1) * BATCH:step * BATCH].split(MICRO)
        for part in parts:
            output = model(input_ids=part, labels=part)
            (output.loss / len(parts)).backward()
            loss += (output.loss - (aux * output.aux_loss if aux > 0 else 0)).item() / len(parts)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP, foreach=False)
        optimizer.step()
        steps.append((loss, norm.item()))
    return model, steps


def train_here(program, folder, model, aux, world, layout):
    balancing = ["moe_router_load_balancing_type: pooled_aux_loss", f"moe_aux_loss_coeff: {aux}"]
    if aux == 0:
        balancing = ["moe_router_load_balancing_type: none", "moe_router_bias_update_rate: 0"]
    return run_here(program, folder, model, world, balancing + layout)


def metrics_of(folder):
    return [json.loads(line) for line in (folder / "out" / "metrics.jsonl").read_text().splitlines()]


def run_here(program, folder, model, world, words):
    """Returns losses, gradient norms and weights of a run on the data of |folder|."""
    config = [f"model: {model}", f"train_data: {folder}/data.safetensors", f"output_dir: {folder}/out", "shuffle: false",
              f"per_device_train_batch_size: {MICRO}", f"max_steps: {STEPS}", f"learning_rate: {LR}", f"min_lr: {MIN_LR}",
              f"warmup_steps: {WARMUP}", "lr_scheduler_type: cosine", "lr_step_offset: 1", f"adam_beta1: {BETAS[0]}",
              f"adam_beta2: {BETAS[1]}", f"adam_epsilon: {EPS}", f"weight_decay: {DECAY}", f"max_grad_norm: {CLIP}",
              "logging_steps: 1", "report_to: [none]", "overwrite_output_dir: true"]
    keys = {line.split(":")[0] for line in words}
    config = [line for line in config if line.split(":")[0] not in keys] + words
    (folder / "run.yaml").write_text("\n".join(config) + "\n")
    command = [program, "train", "--config", str(folder / "run.yaml"), "--nproc", str(world)]
    done = preloaded.run(command)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}\n{done.stderr}")
    weights = load_file(folder / "out" / "model" / "model.safetensors")
    return [(line["loss"], line["grad_norm"]) for line in metrics_of(folder)], weights


def check_loads(folder, model, ids):
    """transformers loads the saved folder with all of its tensors, and computes what |model| does."""
    found, info = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                                    output_loading_info=True)
    wrong = {key: info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys") if info[key]}
    assert not wrong and type(found) is type(model), f"{model.config.model_type}: {wrong}, {type(found)}"
    with torch.no_grad():
        worst = (found(input_ids=ids).logits - model(input_ids=ids).logits).abs().max().item()
    assert worst <= LOADED, f"{model.config.model_type}: logits of the saved folder differ by {worst:.3g}"


def compare(name, steps, weights, wanted_steps, wanted_weights):
    worst = {"loss": 0.0, "norm": 0.0, "weight": 0.0}
    assert len(steps) == len(wanted_steps) and set(weights) == set(wanted_weights), name
    for number, ((loss, norm), (wanted_loss, wanted_norm)) in enumerate(zip(steps, wanted_steps), 1):
        worst["loss"] = largest(worst["loss"], abs(loss - wanted_loss))
        worst["norm"] = largest(worst["norm"], abs(norm - wanted_norm) / wanted_norm)
        assert worst["loss"] <= LOSS, f"{name}: loss {loss} of step {number}; transformers has {wanted_loss}"
        assert worst["norm"] <= NORM, f"{name}: gradient norm {norm} of step {number}; transformers has {wanted_norm}"
    for tensor, wanted in wanted_weights.items():
        share = ((weights[tensor] - wanted).norm() / wanted.norm()).item()
        worst["weight"] = max(worst["weight"], share)
        assert share <= WEIGHT, f"{name}: {tensor} differs by {share:.3g}, bound {WEIGHT:g}"
    print(f"{name}: loss {wanted_steps[0][0]:.4f} to {wanted_steps[-1][0]:.4f}, differences "
          + ", ".join(f"{what} {value:.2g}" for what, value in worst.items()), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("model")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    compare_all(arguments.program, arguments.model, AUX, LAYOUTS)
    with tempfile.TemporaryDirectory() as name:
        make_model("gpt_oss", GPT_OSS, 3).float().save_pretrained(name)
        compare_all(arguments.program, name, AUX, LAYOUTS)


def compare_all(program, source, aux, layouts):
    """Compares the model in folder |source|; aux 0: no load balancing loss, and no updates of the expert biases."""
    ids = make_tokens(json.loads((Path(source) / "config.json").read_text())["vocab_size"])
    model, wanted_steps = train_reference(source, ids, aux)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_file({"input_ids": ids, "labels": ids.clone()}, folder / "data.safetensors")
        model.save_pretrained(folder / "wanted")
        wanted_weights = load_file(folder / "wanted" / "model.safetensors")
        for layout, (world, words) in layouts.items():
            compare(f"{model.config.model_type}, {layout}", *train_here(program, folder, source, aux, world, words),
                    wanted_steps, wanted_weights)
        check_loads(folder / "out" / "model", model, ids[:2])


if __name__ == "__main__":
    main()
