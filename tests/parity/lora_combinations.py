"""Adapters together with other settings: lora_combinations.py PROGRAM [--only NAME]

Linear attention (the gated delta nets of Qwen3-Next and Qwen 3.5), the experts of GPT-OSS, frozen matrices, Muon and the EMA are compared with peft and
torch's optimizers. MTP layers, which peft does not have, are compared with the dense model: with dW the gradient of
W + s B A, that of A is s B^T dW and that of B is s dW A^T. Exit code 77: peft is missing, nothing was compared.
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from lora_in_peft import (EXPERT_LAYOUTS, GOLDEN, LAYOUTS, LR, MODEL, STEPS, compare_logits, compare_losses, compare_merged,
                          load, load_file, losses_of, run, save_file, torch, train, transformers)  # exits with 77
import latent_attention
import linear_attention
import train_experts
from largest import largest
from random_models import in_files, make_model


def pairs_of(adapter):
    """Yields (module, A, B, scale) of the adapter in a folder."""
    config, tensors = json.loads((adapter / "adapter_config.json").read_text()), load_file(str(adapter / "adapter_model.safetensors"))
    for name, a in tensors.items():
        if name.endswith(".lora_A.weight"):
            module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            yield module, a.double(), tensors[name.replace("lora_A", "lora_B")].double(), config["lora_alpha"] / config["r"]


def largest_share(found, wanted):
    """The largest difference of a tensor, relative to its norm."""
    assert set(found) == set(wanted), set(found) ^ set(wanted)
    return largest(*(((found[name].double() - wanted[name].double()).norm() / wanted[name].double().norm()).item() for name in wanted))


# ---------------------------------------------------------------------------------------------------- linear attention


def compare_linear_attention(program, folder):
    projections = {"qwen3_next": "in_proj_qkvz,in_proj_ba", "qwen3_5_moe_text": "in_proj_qkv,in_proj_z,in_proj_b,in_proj_a"}
    for family, names in projections.items():
        (folder / family).mkdir()
        compare_projections(program, folder / family, family, names)


def compare_projections(program, folder, family, projections):
    base = folder / "model"
    make_model(family, linear_attention.SETTINGS, 7).float().save_pretrained(base)
    torch.manual_seed(3)
    ids = torch.randint(0, linear_attention.SETTINGS["vocab_size"], (STEPS, 8, 72))
    data, batch = folder / "data.safetensors", folder / "batch.safetensors"
    save_file({"input_ids": ids, "labels": ids.clone()}, str(data))
    save_file({"input_ids": ids[0].clone(), "labels": ids[0].clone()}, str(batch))
    for name, words in {"": ["--lora_rank", 4], "DoRA ": ["--lora_rank", 2, "--use_dora"]}.items():
        words = [*words, "--lora_target", f"{projections},out_proj,q_proj,o_proj,shared_expert_gate"]
        train(program, data, folder / f"{name}start", *words, "--max_steps", 3, model=base)
        start, lr = folder / f"{name}start/model", 2e-3
        wanted = losses_of(load(start, trainable=True, model=base), load_file(str(data)), lr)
        for layout in ("one", "tp 2, sequence parallel", "cp 2", "ep 2, ZeRO"):
            found = train(program, data, folder / f"{name}{layout}", "--adapter_name_or_path", start, "--learning_rate", lr,
                          *(EXPERT_LAYOUTS | LAYOUTS)[layout], model=base)
            compare_losses(f"{name}linear attention of {family}, {layout}", found, wanted)
        compare_logits(program, folder / f"{name}cp 2/model", batch, folder, base)
    compare_merged(program, folder / "one/model", torch.float32, folder / "merge", base)


# ---------------------------------------------------------------------------------------------- the experts of GPT-OSS


def compare_expert_tensors(program, folder):
    """The experts of GPT-OSS are one tensor, whose A and B are in peft's form for target_parameters."""
    base = folder / "model"
    make_model("gpt_oss", train_experts.GPT_OSS, 7).float().save_pretrained(base)
    torch.manual_seed(3)
    ids = torch.randint(0, train_experts.GPT_OSS["vocab_size"], (STEPS, 8, 24))
    data, batch = folder / "data.safetensors", folder / "batch.safetensors"
    save_file({"input_ids": ids, "labels": ids.clone()}, str(data))
    save_file({"input_ids": ids[0].clone(), "labels": ids[0].clone()}, str(batch))
    plain = ["--moe_router_load_balancing_type", "none"]
    both = "mlp.experts.gate_up_proj,mlp.experts.down_proj"
    for name, parameters, layouts in (("both", both, ["one", *EXPERT_LAYOUTS]), ("one", "1.mlp.experts.down_proj", ["ep 2, ZeRO"])):
        train(program, data, folder / name, "--lora_rank", 3, "--lora_alpha", 5, "--lora_target", "q_proj,o_proj", "--lora_target_parameters",
              parameters, "--max_steps", 3, *plain, model=base)
        start, lr = folder / name / "model", 3e-3
        model = load(start, trainable=True, model=base)
        found = {in_peft_files(key) for key, parameter in model.named_parameters() if parameter.requires_grad}
        assert found == set(load_file(str(start / "adapter_model.safetensors"))), "peft has other matrices"
        wanted = losses_of(model, load_file(str(data)), lr)
        for layout in layouts:
            found = train(program, data, folder / f"{name} {layout}", "--adapter_name_or_path", start, "--learning_rate", lr, *plain,
                          *(EXPERT_LAYOUTS | LAYOUTS)[layout], model=base)
            compare_losses(f"experts in one tensor, {parameters}, {layout}", found, wanted)
        compare_logits(program, folder / f"{name} {layouts[-1]}/model", batch, folder, base)
    alone = shutil.copytree(folder / "both/model", folder / "alone")  # without target_modules
    config = json.loads((alone / "adapter_config.json").read_text())
    (alone / "adapter_config.json").write_text(json.dumps(config | {"target_modules": None}))
    tensors = load_file(str(alone / "adapter_model.safetensors"))
    save_file({key: value for key, value in tensors.items() if "experts" in key}, str(alone / "adapter_model.safetensors"))
    compare_logits(program, alone, batch, folder, base)
    muon_of_tensors(program, data, folder, start.parent.parent / "both/model", base, plain)


def muon_of_tensors(program, data, folder, start, base, plain):
    """Muon takes each tensor of the files for a matrix, as torch's does for peft's."""
    model = load(start, trainable=True, model=base)
    losses, average, last = train_with_average(model, optimizers_of(model, "muon"), load_file(str(data)))
    words = ["--optimizer", "muon", "--muon_momentum", MOMENTUM, "--muon_scale_mode", "shape_scaling", *plain]
    found = train(program, data, folder / "muon", "--adapter_name_or_path", start, *words, *EXPERT_LAYOUTS["tp 2, ep 2, pp 2"], model=base)
    compare_losses("experts in one tensor, Muon", found, losses)
    share = largest_share(load_file(str(folder / "muon/model/adapter_model.safetensors")), last)
    assert share <= BOUNDS["muon"], f"experts in one tensor, Muon: {share:.3g}"


# ----------------------------------------------------------------------------------------------------------------- MTP


def named_views(model, further, kind):
    """Returns the weights or gradients of a model and its MTP layers by their names in files."""
    views = {part: view for name, parameter in model.named_parameters() for part, view in in_files(name, kind(parameter), "deepseek_v3")}
    return views | dict(further.in_files(model.config.num_hidden_layers, kind))


def mtp_gradients(model, further, adapter, ids, labels):
    """Returns what a probe with |adapter| dumps: the loss without MTP, and the gradients of A and B with it."""
    weights = named_views(model, further, lambda tensor: tensor.data if tensor.requires_grad else tensor)
    before = {name: tensor.clone() for name, tensor in weights.items()}
    for module, a, b, scale in pairs_of(adapter):
        weights[module + ".weight"].add_(scale * b @ a)
    expected = latent_attention.further_expected(model, further, further.sums(model, ids, labels))
    for name, tensor in weights.items():
        tensor.copy_(before[name])
    result = {"loss": expected["loss"]}
    for module, a, b, scale in pairs_of(adapter):
        gradient, key = expected[f"grad.{module}.weight"], f"grad.base_model.model.{module}.lora_{{}}.weight"
        result |= {key.format("A"): scale * b.T @ gradient, key.format("B"): scale * gradient @ a.T}
    return result


def compare_mtp(program, tied, folder):
    settings = latent_attention.SETTINGS | {"num_nextn_predict_layers": 2, "tie_word_embeddings": tied}
    model = make_model("deepseek_v3", settings, 13)
    further = latent_attention.Further(model, 2)
    base = folder / "base"
    model.float().save_pretrained(base)
    more = {name: tensor.detach().float().contiguous() for name, tensor in further.in_files(2, lambda parameter: parameter)}
    save_file(load_file(str(base / "model.safetensors")) | more, str(base / "model.safetensors"), metadata={"format": "pt"})
    model = model.double()
    with torch.no_grad():
        for parameter in further.parameters():
            parameter.copy_(parameter.float())
    torch.manual_seed(8)
    ids = torch.randint(0, settings["vocab_size"], (4, 8, 24))
    data, batch = folder / "data.safetensors", folder / "batch.safetensors"
    save_file({"input_ids": ids, "labels": ids.clone()}, str(data))
    target = "q_a_proj,q_b_proj,kv_a_proj_with_mqa,kv_b_proj,o_proj,gate,gate_proj,up_proj,down_proj" + ("" if tied else ",lm_head")
    mtp = ["--mtp_num_layers", 2, "--mtp_loss_scaling_factor", 0.3]

    def run_here(name, layout=(), *words):
        train(program, data, folder / name, "--lora_rank", 3, "--lora_target", target, *mtp, "--max_steps", 4, "--learning_rate", 2e-3,
              "--adam_epsilon", 1e-3, "--moe_router_bias_update_rate", 0, *layout, *words, model=base)
        return folder / name / "model"

    start = run_here("one process")
    assert any(module.startswith("model.layers.3.") for module, *_ in pairs_of(start)), "no MTP layer has an adapter"
    own, labels = ids[0, :2], torch.where(torch.rand(2, 24) < 0.3, torch.full_like(ids[0, :2], -100), ids[0, :2])
    save_file({"input_ids": own.clone(), "labels": labels}, str(batch))
    expected, worst = mtp_gradients(model, further, start, own, labels), 0.0
    for layout in ("one process", "tp 2, sequence parallel", "pp 2", "cp 2", "tp 2, ep 2, recomputation"):
        dump = latent_attention.probe(program, base, folder, "--adapter_name_or_path", str(start), "--dtype", "float64",
                                      *map(str, mtp), *latent_attention.LAYOUTS[layout])
        for what, tensor, share in linear_attention.differences(expected, dump):
            assert share <= 5e-6, f"MTP with an adapter, {layout}: {tensor} {what} by {share:.3g}"
            worst = largest(worst, share)
    print(f"MTP with an adapter, tied {tied}: gradients within {worst:.2g} of the dense model's", flush=True)

    # Reductions start when a gradient is complete: lm_head's matrices get one from each depth.
    overlap = ["--use_distributed_optimizer", "--overlap_grad_reduce", "--delay_grad_reduce", "false", "--ddp_bucket_size", 1]
    wanted, worst = load_file(str(start / "adapter_model.safetensors")), 0.0
    stages = ["--pipeline_model_parallel_size", 2, "--pipeline_model_parallel_layout", "E,t|t,m*2,L"]
    for name, layout in {"dp 2, ep 2": ["--nproc", 2, "--expert_model_parallel_size", 2, *overlap],
                         "pp 2, dp 2": ["--nproc", 4, "--per_device_train_batch_size", 2, *stages, *overlap]}.items():
        share = largest_share(load_file(str(run_here(name, layout) / "adapter_model.safetensors")), wanted)
        assert share <= 1e-6, f"MTP with an adapter, trained under {name}: differs by {share:.3g}"
        worst = largest(worst, share)
    print(f"MTP with an adapter, tied {tied}: trained under 3 layouts: {worst:.2g}", flush=True)

    # Without MTP layers their matrices are not read.
    weights = named_views(model, further, lambda tensor: tensor.data if tensor.requires_grad else tensor)
    for module, a, b, scale in pairs_of(start):
        weights[module + ".weight"].add_(scale * b @ a)
    with torch.no_grad():
        logits = model(input_ids=own).logits
    dump = latent_attention.probe(program, base, folder, "--adapter_name_or_path", str(start), "--dtype", "float64")
    share = ((dump["logits"] - logits).norm() / logits.norm()).item()
    assert share <= 5e-6, f"an adapter with MTP layers, used without them: logits differ by {share:.3g}"


# ------------------------------------------------------------------------------------------- freeze, Muon and the EMA

MOMENTUM, DECAY, EMA, EMA_START = 0.9, 0.1, 0.8, 2
# Muon's as in muon_and_averages.py. AdamW divides each element's update by the size of its gradient, so the smallest of
# N elements, about 1 / N of the typical one, differ most: for gradients that differ by 1e-6 of their norm
# 1e-6 sqrt(N) lr / rms(weight) per step, with N = 512, lr = 1e-2, weights of 0.1 and six steps 1.4e-5.
BOUNDS = {"adam": 1.4e-5, "muon": 2e-6}


def optimizers_of(model, name):
    trained = [p for p in model.parameters() if p.requires_grad]
    if name == "muon":
        return [torch.optim.Muon(trained, lr=LR, weight_decay=DECAY, momentum=MOMENTUM, adjust_lr_fn="original")]
    return [torch.optim.AdamW(trained, lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=DECAY, foreach=False)]


def in_peft_files(name):
    return name.replace(".default.", ".")


def train_with_average(model, optimizers, data):
    """Returns the losses, and the EMA and the final values of A and B by their names in files."""
    trained = {in_peft_files(name): p for name, p in model.named_parameters() if "lora_" in name}
    average, losses = {name: p.detach().clone() for name, p in trained.items()}, []
    for step, (ids, labels) in enumerate(zip(data["input_ids"], data["labels"]), 1):
        model.zero_grad()
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained.values(), 1.0, foreach=False)
        for optimizer in optimizers:
            optimizer.step()
        share = EMA if step > EMA_START else 0.0
        for name, p in trained.items():
            average[name].mul_(share).add_(p.detach(), alpha=1 - share)
        losses.append(loss.item())
    return losses, average, {name: p.detach().clone() for name, p in trained.items()}


def is_frozen(name):
    return "layers.0." in name or any(f"{each}_proj.lora_A" in name for each in "qkv")  # those are one parameter


def compare_frozen(program, data_file, folder):
    data, start = load_file(str(data_file)), GOLDEN / "lora"
    words = ["--freeze", r"layers\.0\.,(q|k|v)_proj\.lora_A"]
    model = load(start, trainable=True)
    for name, parameter in model.named_parameters():
        if is_frozen(name):
            parameter.requires_grad_(False)
    wanted = losses_of(model, data, LR)
    plain = losses_of(load(start, trainable=True), data, LR)
    assert max(abs(a - b) for a, b in zip(wanted, plain)) > 1e-3, "freezing makes no difference"
    for pattern, why in (("embed_tokens", "matches no parameter that is trained"), ("q_proj.lora_A", "matches only some of the 3")):
        try:
            train(program, data_file, folder / "refused", "--freeze", pattern)
        except AssertionError as refused:
            assert why in str(refused), refused
        else:
            raise AssertionError(f"--freeze {pattern} is not refused")
    before = load_file(str(start / "adapter_model.safetensors"))
    for layout in ("tp 2, sequence parallel", "dp 2, ZeRO, overlapping"):
        found = train(program, data_file, folder / layout, "--adapter_name_or_path", start, *words, *LAYOUTS[layout])
        compare_losses(f"frozen, {layout}", found, wanted)
        after = load_file(str(folder / layout / "model/adapter_model.safetensors"))
        assert set(after) == set(before)
        for name, tensor in before.items():
            assert torch.equal(after[name], tensor) == is_frozen(name), name


def compare_averages(program, data_file, folder):
    data, start = load_file(str(data_file)), GOLDEN / "lora"
    for name, words in {"adam": [], "muon": ["--optimizer", "muon", "--muon_momentum", MOMENTUM, "--muon_scale_mode", "shape_scaling"]}.items():
        model = load(start, trainable=True)
        losses, average, last = train_with_average(model, optimizers_of(model, name), data)
        words = [*words, "--ema_decay", EMA, "--ema_start_step", EMA_START]
        for layout in ("one", "tp 2, dp 2, ZeRO", "pp 2, vpp 2"):
            found = train(program, data_file, folder / f"{name} {layout}", "--adapter_name_or_path", start, *words, *LAYOUTS[layout])
            compare_losses(f"{name}, {layout}", found, losses)
            shares = [largest_share(load_file(str(folder / f"{name} {layout}" / part / "adapter_model.safetensors")), wanted)
                      for part, wanted in (("model", last), ("ema_model", average))]
            print(f"{name}, {layout}: A and B within {shares[0]:.2g}, their average within {shares[1]:.2g}", flush=True)
            assert largest(*shares) <= BOUNDS[name], f"{name}, {layout}: {shares}, bound {BOUNDS[name]}"
    compare_resumed_average(program, data_file, folder, words)


def compare_resumed_average(program, data_file, folder, words):
    """A run resumes with the average of a checkpoint: bitwise."""
    words = ["--adapter_name_or_path", GOLDEN / "lora", *words, *LAYOUTS["dp 2, ZeRO, overlapping"], "--save_steps", 3]
    train(program, data_file, folder / "whole", *words)
    train(program, data_file, folder / "resumed", *words, "--resume_from_checkpoint", folder / "whole/checkpoint-3")
    found, wanted = (load_file(str(folder / name / "ema_model/adapter_model.safetensors")) for name in ("resumed", "whole"))
    assert set(found) == set(wanted) and all(torch.equal(found[name], wanted[name]) for name in wanted)
    print("the average of a resumed run: the same bits", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--only")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.Tensor.bfloat16 = torch.Tensor.float  # the type of torch.optim.Muon's iterations
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    program = arguments.program
    checks = {"linear": lambda folder, _: compare_linear_attention(program, folder),
              "gpt_oss": lambda folder, _: compare_expert_tensors(program, folder),
              "mtp": lambda folder, _: compare_mtp(program, False, folder),
              "mtp tied": lambda folder, _: compare_mtp(program, True, folder),
              "frozen": lambda folder, data: compare_frozen(program, data, folder),
              "averages": lambda folder, data: compare_averages(program, data, folder)}
    for name, check in checks.items():
        if arguments.only in (None, name):
            with tempfile.TemporaryDirectory(prefix="concord-lora-") as folder:
                tokens = load_file(str(GOLDEN / "train/tokens.safetensors"))
                data = Path(folder) / "tokens.safetensors"
                save_file({"input_ids": tokens["input_ids"][:STEPS].contiguous(), "labels": tokens["labels_full"][:STEPS].contiguous()}, str(data))
                check(Path(folder), data)


if __name__ == "__main__":
    main()
