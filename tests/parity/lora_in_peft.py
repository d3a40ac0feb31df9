"""Adapters compared with peft's: lora_in_peft.py PROGRAM [--platform P]

Trains an adapter for 6 steps with peft and with the program, with layouts, from the golden adapter and from a new one
of the program: the losses of every step agree. peft loads the adapter that the program has saved, and computes the
logits of `concord probe`. `concord merge` gives merge_and_unload's weights. With --platform it is one run, on that
platform. Exit code 77: peft is missing.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import preloaded
from largest import largest

try:
    import peft
    import torch
    import transformers
    from peft.optimizers import create_loraplus_optimizer
    from safetensors.torch import load_file, save_file
except ImportError as missing:
    print(f"skipped: {missing}; install torch, transformers, peft and safetensors for this Python")
    sys.exit(77)

GOLDEN = Path(__file__).parent.parent / "golden"
MODEL = GOLDEN / "hf/qwen2-tiny"
STEPS, LR = 6, 1e-2
LOSS_BOUND = 5e-5  # golden/README.md: float32 rounding after 20 steps
LOGITS_BOUND = 1e-5

LAYOUTS = {
    "one": [],
    "tp 2, sequence parallel": ["--nproc", 2, "--tensor_model_parallel_size", 2, "--sequence_parallel"],
    "cp 2": ["--nproc", 2, "--context_parallel_size", 2],
    "pp 2, vpp 2": ["--nproc", 2, "--pipeline_model_parallel_size", 2, "--virtual_pipeline_model_parallel_size", 2],
    "pp 2, zero bubble": ["--nproc", 2, "--pipeline_model_parallel_size", 2, "--pipeline_schedule", "zb-h1"],
    "dp 2, ZeRO, overlapping": ["--nproc", 2, "--use_distributed_optimizer", "--overlap_grad_reduce", "--overlap_param_gather"],
    "tp 2, dp 2, ZeRO": ["--nproc", 4, "--tensor_model_parallel_size", 2, "--use_distributed_optimizer"],
}


def run(*command):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CONCORD_LOG": "warn"}
    done = preloaded.run(command, environment)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def load(adapter, trainable=False, model=MODEL):
    base = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager",
                                                             experts_implementation="eager")  # others lack float64
    return peft.PeftModel.from_pretrained(base, adapter, is_trainable=trainable)


def peft_losses(adapter, data, lr=LR, model=MODEL):
    return losses_of(load(adapter, trainable=True, model=model), data, lr)


def adamw(trained, lr):
    decays = [{"params": [p for p in trained if p.dim() >= 2]}, {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0}]
    return torch.optim.AdamW(decays, lr=lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)


def losses_of(model, data, lr, make_optimizer=adamw):
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = make_optimizer(trained, lr)
    losses = []
    for ids, labels in zip(data["input_ids"], data["labels"]):
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def train(program, data, output, *words, model=MODEL):
    run(program, "train", "--model", model, "--finetuning_type", "lora", "--train_data", data, "--shuffle", "false",
        "--global_batch_size", 8, "--per_device_train_batch_size", 4, "--learning_rate", LR, "--lr_scheduler_type", "constant",
        "--adam_beta2", 0.95, "--weight_decay", 0.1, "--max_steps", STEPS, "--logging_steps", 1, "--report_to", "none",
        "--output_dir", output, *words)
    return [json.loads(line)["loss"] for line in open(output / "metrics.jsonl")]


def compare_losses(name, found, wanted):
    if len(found) != len(wanted):
        raise AssertionError(f"{name}: {len(found)} steps instead of {len(wanted)}")
    worst = largest(*(abs(a - b) for a, b in zip(found, wanted)))
    if not worst <= LOSS_BOUND:
        raise AssertionError(f"{name}: losses differ by {worst:.3g}, bound {LOSS_BOUND:g}")
    print(f"{name}: losses of {len(found)} steps within {worst:.2g} of peft's", flush=True)


def compare_resumed(program, name, data, folder, layout, *words, model=MODEL):
    """A run that was stopped is bitwise identical to the one of |layout| that was not."""
    words = [*words, *LAYOUTS[layout]]
    train(program, data, folder / "resumed", *words, "--max_steps", 4, "--save_steps", 4, model=model)
    found = train(program, data, folder / "resumed", *words, "--resume_from_checkpoint", "latest", model=model)
    losses = [json.loads(line)["loss"] for line in open(folder / layout / "metrics.jsonl")]
    adapters = [(folder / each / "model/adapter_model.safetensors").read_bytes() for each in ("resumed", layout)]
    if found != losses or adapters[0] != adapters[1]:
        raise AssertionError(f"{name}: losses of the resumed run are {found}, of the other {losses}; the adapters are "
                             f"{'equal' if adapters[0] == adapters[1] else 'not equal'}")
    print(f"{name}: resumed to the same bits, {layout}", flush=True)


def compare_logits(program, adapter, batch, folder, model=MODEL):
    dump = folder / "dump.safetensors"
    # The folder names its base model. In float64, so that remaining differences are not rounding.
    run(program, "probe", "--overwrite", "--model", adapter, "--batch", batch, "--out", dump, "--dtype", "float64")
    with torch.no_grad():
        wanted = load(adapter, model=model).double().eval()(input_ids=load_file(str(batch))["input_ids"]).logits
    worst = (load_file(str(dump))["logits"] - wanted).abs().max().item()
    if not worst <= LOGITS_BOUND:
        raise AssertionError(f"{adapter}: logits differ by {worst:.3g}, bound {LOGITS_BOUND:g}")
    print(f"{adapter.parent.name}: peft computes the same logits within {worst:.2g}", flush=True)


def compare_merged(program, adapter, dtype, folder, start=MODEL):
    """B A is a sum of r products in float32, rounded once here and once per product by peft; the product with the
    scale and the sum are rounded once each by both."""
    base, out = folder / f"base {dtype}", folder / f"merged {dtype}"
    model = transformers.AutoModelForCausalLM.from_pretrained(start, dtype=dtype)
    model.save_pretrained(base)
    before = {name: value.double() for name, value in load_file(str(base / "model.safetensors")).items()}
    with_adapter = peft.PeftModel.from_pretrained(model, adapter)
    with_adapter.merge_and_unload().save_pretrained(folder / f"peft {dtype}")  # by the names of files, which single experts have
    wanted = load_file(str(folder / f"peft {dtype}/model.safetensors"))
    run(program, "merge", "--model", base, "--adapter", adapter, "--out", out)
    found, parts = load_file(str(out / "model.safetensors")), load_file(str(adapter / "adapter_model.safetensors"))
    config = with_adapter.peft_config["default"]
    unit, own_unit = 2.0**-24, torch.finfo(dtype).eps / 2
    equal = changed = 0
    for name, value in wanted.items():
        if found[name].dtype != dtype:
            raise AssertionError(f"{name} is {found[name].dtype}, not {dtype}")
        if "base_model.model." + name in parts:
            if not torch.equal(found[name], parts["base_model.model." + name].to(dtype)) or torch.equal(found[name].double(), before[name]):
                raise AssertionError(f"{name} is not the adapter's")
            continue
        key = "base_model.model." + name.removesuffix(".weight") + ".lora_{}.weight"
        sizes = 0
        if key.format("A") in parts:
            a, b = parts[key.format("A")].double(), parts[key.format("B")].double()
            sizes = b.abs() @ a.abs() * (config.lora_alpha / config.r)
            changed += found[name].numel()
            equal += (found[name] == value).sum().item()
            if torch.equal(found[name].double(), before[name]):
                raise AssertionError(f"{name} was not changed")
        rounding = (config.r + 2) * unit * sizes
        if config.use_dora and key.format("A") in parts:
            # Multiplied by m / norm, the norm being a sum of as many squares as there are inputs.
            magnitude = parts[key.format("A").replace("lora_A.weight", "lora_magnitude_vector")].double()
            factor = magnitude / (before[name] + b @ a * (config.lora_alpha / config.r)).norm(dim=1)
            rounding = factor[:, None] * rounding + (a.shape[1] + 3) * unit * value.double().abs()
        # If these are on both sides of a midpoint, the results are adjacent numbers of the weight's type.
        bound = rounding + (2 * own_unit * (value.double().abs() + rounding) if key.format("A") in parts else 0)
        if not ((found[name].double() - value.double()).abs() <= bound).all():
            raise AssertionError(f"{name}: merged weights differ from peft's by more than rounding")
    if set(found) != set(wanted):
        raise AssertionError(f"tensors differ: {set(found) ^ set(wanted)}")
    print(f"merged in {dtype}: {equal} of {changed} changed elements have peft's bits, the others within rounding", flush=True)


def compare_generated(program, adapter, folder):
    """`concord generate` with an adapter, given in two ways, continues like peft's model, and unlike its base."""
    ids = [3, 1, 4, 1, 5]
    prompts = folder / "prompts.jsonl"
    prompts.write_text(json.dumps({"input_ids": ids}) + "\n")
    named = folder / "named"  # an adapter whose base model is found by its name
    shutil.copytree(adapter, named)
    config = json.loads((named / "adapter_config.json").read_text())
    (named / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": str(MODEL)}))

    def found(*words):
        said = run(program, "generate", *words, "--prompts", prompts, "--max_new_tokens", 20, "--dtype", "float32", "--json")
        return json.loads(said)["generated"][0]["ids"]

    def wanted(model):
        with torch.no_grad():
            return model.generate(torch.tensor([ids]), max_new_tokens=20, do_sample=False, eos_token_id=None)[0, len(ids):].tolist()

    base, own = load(adapter), wanted(load(adapter))
    with base.disable_adapter():
        plain = wanted(base)
    if own == plain:
        raise AssertionError("the adapter changes nothing that was generated; choose another prompt")
    for words in (["--model", MODEL, "--adapter", adapter], ["--model", named],
                  ["--model", named, "--nproc", 2, "--tensor_model_parallel_size", 2]):
        if found(*words) != own:
            raise AssertionError(f"generate {words}: {found(*words)}, peft: {own}")
    if found("--model", MODEL) != plain:
        raise AssertionError("generate without the adapter is not the base model's")
    print("generated as peft does, with and without the adapter", flush=True)


# ------------------------------------------------------------------------------------------------------ PiSSA and OLoRA


def decaying(folder):
    """Returns a model whose matrices have singular values far enough apart that the largest are unique up to signs."""
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    for name, weight in model.named_parameters():
        if "_proj.weight" in name:
            u, s, v = torch.linalg.svd(weight.data.double(), full_matrices=False)
            weight.data = (u @ torch.diag(s[0] * 0.8 ** torch.arange(len(s), dtype=torch.float64)) @ v).float()
    model.save_pretrained(folder)
    return folder


def compare_start(program, init, data, batch, folder, layout):
    """The same adapters, up to signs, and the same remaining weights as peft's; saved as an adapter of the original
    weights."""
    base, rank, alpha, lr = decaying(folder / "base"), 4, 6, 2e-3
    names = ["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"]
    words = ["--init_lora_weights", init, "--lora_rank", rank, "--lora_alpha", alpha, "--lora_target", ",".join(names), "--learning_rate", lr]
    torch.manual_seed(0)
    config = peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=names, init_lora_weights=init)
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model = peft.get_peft_model(model, config)

    start = folder / "start/model"
    train(program, data, start.parent, *words, "--max_steps", 1, "--learning_rate", 0, model=base)
    saved = load_file(str(start / "adapter_model.safetensors"))
    layers = dict(model.base_model.model.named_modules())
    worst = 0.0
    for key, a in saved.items():
        if not key.endswith("lora_A.weight"):
            continue
        module = key.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        b = saved[key.replace("lora_A", "lora_B")]
        if not torch.equal(a[:rank], a[rank:]) or not torch.equal(b[:, :rank], -b[:, rank:]):
            raise AssertionError(f"{key}: the saved adapter is not the beginning twice")
        own, layer, weight = b[:, :rank] @ a[:rank], layers[module], before[module + ".weight"]
        theirs = layer.lora_B["default"].weight @ layer.lora_A["default"].weight
        rest = weight - alpha / rank * own
        # Vectors of the r-th singular value rotate by the rounding of W over the gap to the next one, 0.2 of it.
        bound = 1e-6 * torch.linalg.matrix_norm(weight, 2)
        for one, other in ((own, theirs), (rest, layer.base_layer.weight)):
            worst = largest(worst, ((one - other).abs().max() / bound).item())
    if not worst <= 1:
        raise AssertionError(f"{init}: a pair or the rest of the weights differs from peft's by {worst:.2g} of the bound")
    print(f"{init}: pairs and the rest of the weights are peft's, {worst:.2g} of the bound", flush=True)

    wanted = losses_of(model, load_file(str(data)), lr)
    if init == "pissa":  # interrupted
        train(program, data, folder / layout, *words, "--save_steps", 4, "--max_steps", 4, model=base)
        words += ["--resume_from_checkpoint", "latest"]
    found = train(program, data, folder / layout, *words, *LAYOUTS[layout], model=base)
    compare_losses(f"{init}, {layout}", found, wanted)
    compare_logits(program, folder / layout / "model", batch, folder, base)
    compare_merged(program, folder / layout / "model", torch.float32, folder / "merge", base)


# -------------------------------------------------------------------------------------------------------- with experts

EXPERT_LAYOUTS = {
    "ep 2, ZeRO": ["--nproc", 2, "--expert_model_parallel_size", 2, "--use_distributed_optimizer"],
    "tp 2, sequence parallel, etp 2": ["--nproc", 2, "--tensor_model_parallel_size", 2, "--sequence_parallel"],
    "tp 2, ep 2, pp 2": ["--nproc", 4, "--tensor_model_parallel_size", 2, "--sequence_parallel", "--expert_model_parallel_size", 2,
                         "--expert_tensor_parallel_size", 1, "--pipeline_model_parallel_size", 2],
}


def keep_pairs_apart(model):
    """transformers 5 stores gate and up of all experts in one tensor, for which peft converts two adapters to one of
    twice the rank with a block-diagonal B. This keeps the other blocks, which two adapters do not have, at 0 in
    training."""
    found = 0
    for module in model.modules():
        if type(module).__name__ != "ParamWrapper" or module.parameter_name != "gate_up_proj":
            continue
        weight = module.lora_B["default"].weight
        outputs, ranks = weight.shape[0] // 2, weight.shape[1] // module.num_experts // 2
        mask = torch.zeros(2 * outputs, 2 * ranks, module.num_experts)
        mask[:outputs, :ranks] = mask[outputs:, ranks:] = 1
        mask = mask.reshape(weight.shape)
        if not torch.equal(weight * mask, weight):
            raise AssertionError("the pairs of gate and up are not the blocks that they are taken for")
        weight.register_hook(lambda grad, mask=mask: grad * mask)
        found += 1
    print(f"{found} layers with pairs of experts in peft", flush=True)
    return model


def make_latent_model(folder):
    torch.manual_seed(3)
    config = transformers.DeepseekV3Config(
        vocab_size=256, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
        q_lora_rank=12, kv_lora_rank=10, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=8, first_k_dense_replace=2,
        initializer_range=0.2, max_position_embeddings=64, n_routed_experts=8, moe_intermediate_size=16, n_group=1, topk_group=1,
        pad_token_id=None, bos_token_id=None, eos_token_id=None)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def compare_experts(program, name, target, data, batch, folder, layouts):
    """Adapters of experts, routers and gates of shared experts: files as peft's for single experts."""
    base, lr = GOLDEN / "hf" / name, 3e-3
    # peft 0.21 does not know the experts of qwen2_moe in transformers 5; that model tests the gate of the shared
    # expert.
    words = ["--lora_rank", 3, "--lora_alpha", 5, "--lora_target", target, "--learning_rate", lr]
    train(program, data, folder / "start", *words, "--max_steps", 3, model=base)
    start = folder / "start/model"
    compare_logits(program, start, batch, folder, base)
    wanted = losses_of(keep_pairs_apart(load(start, trainable=True, model=base)), load_file(str(data)), lr)
    for layout in layouts:
        found = train(program, data, folder / layout, "--adapter_name_or_path", start, "--learning_rate", lr,
                      *(EXPERT_LAYOUTS | LAYOUTS)[layout], model=base)
        compare_losses(f"{name}, {target}, {layout}", found, wanted)
    compare_logits(program, folder / layouts[-1] / "model", batch, folder, base)
    compare_merged(program, folder / layouts[-1] / "model", torch.float32, folder / "merge", base)


# -------------------------------------------------------------------------------------------------- weights in 4 bits

NF4 = torch.tensor([-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
                    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
                    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0])


def absmax_map():
    numbers = [0.0, 1.0]
    for i in range(7):
        ends = torch.linspace(0.1, 1, 2**i + 1)
        means = (10 ** (i - 6) * ((ends[:-1] + ends[1:]) / 2.0)).tolist()
        numbers += means + [-mean for mean in means]
    return torch.tensor(sorted(numbers))


def nearest(values, size, numbers):
    blocks = torch.nn.functional.pad(values.reshape(-1), (0, -values.numel() % size)).view(-1, size)
    largest = blocks.abs().amax(1)
    scaled = (blocks * (1 / largest.clamp(min=1e-38))[:, None]).clamp(-1, 1)
    return torch.bucketize(scaled, (numbers[:-1] + numbers[1:]) / 2).view(-1)[:values.numel()], largest


def in_four_bits(weight):
    """Returns bitsandbytes' result: quantize_4bit(compress_statistics=True, quant_type="nf4") and dequantize_4bit."""
    codes, absmax = nearest(weight, 64, NF4)
    mean = absmax.mean()
    absmax_codes, scales = nearest(absmax - mean, 256, absmax_map())
    absmax = absmax_map()[absmax_codes] * scales.repeat_interleave(256)[:len(absmax)] + mean
    return (NF4[codes].view(-1, 64) * absmax[:, None]).view(weight.shape)


def make_four_bit_models(folder, seed, **sizes):
    """Creates a random model in base/, and its nf4 values in dequantised/."""
    torch.manual_seed(seed)
    config = transformers.Qwen2Config(num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.1,
                                      pad_token_id=None, bos_token_id=None, eos_token_id=None, **sizes)
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder / "base")
    for name, weight in model.named_parameters():
        if "_proj.weight" in name:
            weight.data = in_four_bits(weight.data)
    model.save_pretrained(folder / "dequantised")


def compare_four_bits(program, data, folder):
    """peft with weights that have nf4 values; these are the same for every layout, whatever the shards."""
    make_four_bit_models(folder, 5, vocab_size=512, hidden_size=128, intermediate_size=384, num_hidden_layers=4)
    words, lr = ["--lora_rank", 4, "--quantization_bit", 4, "--learning_rate", 2e-3], 2e-3
    train(program, data, folder / "start", *words, "--max_steps", 1, "--learning_rate", 0, model=folder / "base")
    wanted = peft_losses(folder / "start/model", load_file(str(data)), lr, folder / "dequantised")
    plain = peft_losses(folder / "start/model", load_file(str(data)), lr, folder / "base")
    if not max(abs(a - b) for a, b in zip(wanted, plain)) > 100 * LOSS_BOUND:
        raise AssertionError("4 bits make no difference; nothing was compared")
    for layout in ("one", "tp 2, sequence parallel", "pp 2, vpp 2", "tp 2, dp 2, ZeRO"):
        found = train(program, data, folder / layout, *words, *LAYOUTS[layout], model=folder / "base")
        compare_losses(f"in 4 bits, {layout}", found, wanted)
    dora = [*words, "--use_dora", "--lora_target", "q_proj,down_proj"]
    train(program, data, folder / "dora start", *dora, "--max_steps", 1, "--learning_rate", 0, model=folder / "base")
    wanted = peft_losses(folder / "dora start/model", load_file(str(data)), lr, folder / "dequantised")
    found = train(program, data, folder / "dora", *dora, *LAYOUTS["tp 2, sequence parallel"], model=folder / "base")
    compare_losses("in 4 bits with DoRA, tp 2", found, wanted)
    compare_resumed(program, "in 4 bits", data, folder, "tp 2, sequence parallel", *words, model=folder / "base")
    # Adapters are merged into the weights before these are quantised to NF4.
    run(program, "merge", "--model", folder / "base", "--adapter", folder / "one/model", "--out", folder / "merged")
    by_hand = train(program, data, folder / "by hand", *words, "--max_steps", 3, model=folder / "merged")
    found = train(program, data, folder / "beside one", *words, "--max_steps", 3, "--adapter_name_or_path", folder / "one/model",
                  "--create_new_adapter", model=folder / "base")
    if found != by_hand:
        raise AssertionError(f"in 4 bits with an adapter merged: {found}, with the folder of `concord merge`: {by_hand}")
    print("in 4 bits with an adapter merged: as from the folder of `concord merge`", flush=True)


# ------------------------------------------------------------------------------------------------------------- LoRA+


def compare_loraplus(program, data, folder):
    """The learning rates of peft's create_loraplus_optimizer, with DoRA, whose magnitudes have that of B. It decays
    these, unlike Concord: without weight decay there."""
    ratio, lr = 8, 1e-3
    for name, decay, words in (("LoRA+", 0.1, []), ("LoRA+ with DoRA", 0.0, ["--use_dora"])):
        words = [*words, "--lora_target", "q_proj,v_proj,down_proj", "--weight_decay", decay, "--learning_rate", lr]
        train(program, data, folder / f"{name} start", *words, "--max_steps", 1, "--learning_rate", 0)
        model = load(folder / f"{name} start/model", trainable=True)
        plain = losses_of(load(folder / f"{name} start/model", trainable=True), load_file(str(data)), lr)

        def loraplus(_, lr):
            return create_loraplus_optimizer(model, torch.optim.AdamW, lr=lr, loraplus_lr_ratio=ratio, betas=(0.9, 0.95),
                                                             eps=1e-8, loraplus_weight_decay=decay)

        wanted = losses_of(model, load_file(str(data)), lr, loraplus)
        if not max(abs(a - b) for a, b in zip(wanted, plain)) > 100 * LOSS_BOUND:
            raise AssertionError(f"{name}: the ratio makes no difference")
        for layout in ("one", "tp 2, dp 2, ZeRO"):
            found = train(program, data, folder / f"{name}, {layout}", *words, "--loraplus_lr_ratio", ratio, *LAYOUTS[layout])
            compare_losses(f"{name}, {layout}", found, wanted)


# ----------------------------------------------------------------------------------------------------- TRL's metrics


def compare_token_metrics(program, adapter, data, folder):
    """The values that TRL's SFTTrainer.compute_loss logs for a step whose samples are one batch: over the tokens
    with a label, the mean entropy and the accuracy; and all tokens so far."""
    model, found = load(adapter, trainable=True), []
    hook = model.register_forward_hook(lambda _, inputs, output: found.append(output.logits.detach().double()))
    ids, labels = load_file(str(data))["input_ids"], load_file(str(data))["labels"]
    losses = losses_of(model, {"input_ids": ids, "labels": labels}, LR)
    hook.remove()
    output = folder / "token metrics"
    compare_losses("with labels for some tokens", train(program, data, output, "--adapter_name_or_path", adapter, "--log_token_metrics", "true",
                                                        *LAYOUTS["tp 2, dp 2, ZeRO"]), losses)
    worst = 0.0
    for step, line in enumerate(map(json.loads, open(output / "metrics.jsonl"))):
        logits, wanted = found[step][:, :-1], labels[step][:, 1:]
        logps, valid = logits.log_softmax(-1), wanted != -100
        entropy = (-(logps.exp() * logps).sum(-1) * valid).sum() / valid.sum()
        accuracy = ((logits.argmax(-1) == wanted) & valid).sum() / valid.sum()
        worst = largest(worst, abs(line["entropy"] - entropy.item()))
        if not abs(line["mean_token_accuracy"] - accuracy.item()) <= 1e-7 or line["tokens"] != ids[:step + 1].numel():
            raise AssertionError(f"step {step}: {line}, expected an accuracy of {accuracy} and {ids[:step + 1].numel()} tokens")
    if not worst <= LOSS_BOUND:
        raise AssertionError(f"entropies differ by {worst:.3g}, bound {LOSS_BOUND:g}")
    print(f"TRL's metrics of tokens: entropy within {worst:.2g}, accuracy and number of tokens equal", flush=True)


# ---------------------------------------------------------------------------------------------------- several adapters


def compare_several(program, first, data, batch, folder):
    """All adapters except the last are merged, like `concord merge` and peft, and the last is trained or a new one
    is created."""
    words, lr = ["--lora_rank", 2, "--lora_target", "q_proj,up_proj,down_proj", "--learning_rate", 3e-3], 3e-3
    run(program, "merge", "--model", MODEL, "--adapter", first, "--out", folder / "merged")
    by_hand = train(program, data, folder / "by hand", *words, model=folder / "merged")
    new = train(program, data, folder / "new", *words, "--adapter_name_or_path", first, "--create_new_adapter", *LAYOUTS["one"])
    if new != by_hand:
        raise AssertionError(f"a new adapter beside merged weights: {new}, with the folder of `concord merge`: {by_hand}")
    base = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32, attn_implementation="eager")
    merged = peft.PeftModel.from_pretrained(base, first).merge_and_unload()
    wanted = losses_of(peft.PeftModel.from_pretrained(merged, folder / "by hand/model", is_trainable=True), load_file(str(data)), lr)
    for layout in ("tp 2, sequence parallel", "pp 2, vpp 2"):
        found = train(program, data, folder / layout, "--adapter_name_or_path", f"{first},{folder / 'by hand/model'}", "--learning_rate", lr,
                      *LAYOUTS[layout])
        compare_losses(f"two adapters, {layout}", found, wanted)
    compare_resumed(program, "two adapters", data, folder, "pp 2, vpp 2", "--adapter_name_or_path", f"{first},{folder / 'by hand/model'}",
                    "--learning_rate", lr)
    # The merged adapters need not be given again, and must be the same.
    again = [train(program, data, folder / f"again {number}", "--adapter_name_or_path", names, "--max_steps", 2)
             for number, names in enumerate((folder / "new/model", f"{first},{folder / 'new/model'}"))]
    further = train(program, data, folder / "further", "--adapter_name_or_path", folder / "by hand/model", "--max_steps", 2, model=folder / "merged")
    if again != [further, further]:
        raise AssertionError(f"an adapter beside merged weights, trained further: {again}, by hand: {further}")
    try:
        train(program, data, folder / "again 2", "--adapter_name_or_path", f"{folder / 'by hand/model'},{folder / 'new/model'}")
    except AssertionError as refused:
        if "was trained on a base model with" not in str(refused):
            raise
    else:
        raise AssertionError("an adapter was trained beside other weights than it was made for")
    # Its folder records the merged adapters.
    dump = folder / "dump.safetensors"
    logits = []
    for model in (["--model", folder / "new/model"], ["--model", folder / "merged", "--adapter_name_or_path", folder / "by hand/model"]):
        run(program, "probe", "--overwrite", *model, "--batch", batch, "--out", dump)
        logits.append(load_file(str(dump))["logits"])
    if not torch.equal(*logits):
        raise AssertionError("an adapter beside merged weights is read without these")
    print("the folder of an adapter remembers which ones were merged before", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--platform")
    parser.add_argument("--only_starts", action="store_true", help="only adapters that begin as a part of the weights")
    parser.add_argument("--only_four_bits", action="store_true", help="only weights in 4 bits, and several adapters")
    parser.add_argument("--only_experts", action="store_true", help="only adapters beside experts")
    parser.add_argument("--only_loraplus", action="store_true", help="only learning rates of LoRA+")
    arguments = parser.parse_args()
    program = arguments.program
    if arguments.platform:
        os.environ["CONCORD_PLATFORM"] = arguments.platform
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory(prefix="concord-peft-") as name:
        folder = Path(name)
        tokens, expected = load_file(GOLDEN / "train/tokens.safetensors"), load_file(GOLDEN / "lora/expected.safetensors")
        data = {"input_ids": tokens["input_ids"][:STEPS], "labels": tokens["labels_full"][:STEPS]}
        data_file, batch = folder / "data.safetensors", folder / "batch.safetensors"
        save_file(data, str(data_file))
        save_file({key: expected[key] for key in ("input_ids", "labels")}, str(batch))

        def compare_starts():
            compare_start(program, "pissa", data_file, batch, folder / "pissa", "tp 2, sequence parallel")
            compare_start(program, "pissa_niter_40", data_file, batch, folder / "pissa by iteration", "pp 2, vpp 2")
            compare_start(program, "olora", data_file, batch, folder / "olora", "tp 2, dp 2, ZeRO")

        def compare_all_experts():
            few, few_batch = folder / "few.safetensors", folder / "few_batch.safetensors"  # in these vocabularies
            save_file({key: torch.where(value < 0, value, value % 256) for key, value in data.items()}, str(few))
            save_file({key: torch.where(expected[key] < 0, expected[key], expected[key] % 256) for key in ("input_ids", "labels")}, str(few_batch))
            compare_experts(program, "qwen3-moe-tiny", "all-linear", few, few_batch, folder / "qwen3", list(EXPERT_LAYOUTS))
            compare_experts(program, "mixtral-tiny", "gate,w1,w2,w3,q_proj", few, few_batch, folder / "mixtral", ["ep 2, ZeRO"])
            compare_experts(program, "qwen2-moe-tiny", "q_proj,shared_expert_gate,shared_expert.up_proj", few, few_batch, folder / "qwen2", ["tp 2, sequence parallel, etp 2"])
            compare_experts(program, make_latent_model(folder / "latents"), "q_a_proj,kv_a_proj_with_mqa,kv_b_proj", few, few_batch,
                            folder / "latent", ["tp 2, sequence parallel"])

        def compare_four_and_several():
            some = folder / "some.safetensors"
            save_file({"input_ids": data["input_ids"], "labels": tokens["labels_uneven"][:STEPS].contiguous()}, str(some))
            compare_token_metrics(program, GOLDEN / "lora", some, folder)
            compare_four_bits(program, data_file, folder / "four")
            compare_several(program, GOLDEN / "lora", data_file, batch, folder / "several")

        if arguments.only_four_bits:
            return compare_four_and_several()
        if arguments.only_experts:
            return compare_all_experts()
        if arguments.only_loraplus:
            return compare_loraplus(program, data_file, folder)
        if arguments.only_starts:
            return compare_starts()
        wanted = peft_losses(GOLDEN / "lora", data)
        if arguments.platform:
            found = train(program, data_file, folder / "there", "--adapter_name_or_path", GOLDEN / "lora", *LAYOUTS["dp 2, ZeRO, overlapping"])
            return compare_losses(arguments.platform, found, wanted)
        for number, (layout, words) in enumerate(LAYOUTS.items()):
            found = train(program, data_file, folder / str(number), "--adapter_name_or_path", GOLDEN / "lora", *words)
            compare_losses(layout, found, wanted)
        compare_logits(program, folder / "1/model", batch, folder)

        for dtype in (torch.float32, torch.bfloat16):
            compare_merged(program, GOLDEN / "lora", dtype, folder)
        compare_generated(program, GOLDEN / "lora", folder)

        new = ["--lora_rank", 4, "--lora_target", "q_proj,v_proj,lm_head,.*[.]down_proj", "--use_rslora",
               "--rank_pattern", "{v_proj: 2, 'layers.1.mlp.down_proj': 6}", "--alpha_pattern", "{q_proj: 3}"]
        train(program, data_file, folder / "start", *new, "--max_steps", 1, "--learning_rate", 0)
        wanted = peft_losses(folder / "start/model", data)
        compare_losses("new", train(program, data_file, folder / "new", *new), wanted)
        found = train(program, data_file, folder / "new tp", *new, "--nproc", 2, "--tensor_model_parallel_size", 2)
        compare_losses("new, tp 2", found, wanted)
        compare_logits(program, folder / "new/model", batch, folder)

        # With the learning rate of the others, rounding grows in 20 steps: peft in float32 is 2e-5 off from itself in
        # float64.
        dora, dora_lr = ["--use_dora", "--lora_target", "q_proj,v_proj,o_proj,up_proj"], 2e-3
        train(program, data_file, folder / "dora start", *dora, "--max_steps", 1, "--learning_rate", 0)
        wanted = peft_losses(folder / "dora start/model", data, dora_lr)
        for layout in ("tp 2, sequence parallel", "pp 2, zero bubble"):
            found = train(program, data_file, folder / f"dora {layout}", *dora, *LAYOUTS[layout], "--learning_rate", dora_lr)
            compare_losses(f"DoRA, {layout}", found, wanted)
        compare_logits(program, folder / "dora tp 2, sequence parallel/model", batch, folder)
        compare_merged(program, folder / "dora pp 2, zero bubble/model", torch.float32, folder / "dora")

        compare_loraplus(program, data_file, folder)
        compare_starts()
        compare_all_experts()
        compare_four_and_several()

        whole = ["--lora_target", "q_proj,down_proj", "--modules_to_save", "embed_tokens,lm_head,norm"]
        train(program, data_file, folder / "whole start", *whole, "--max_steps", 1, "--learning_rate", 0)
        wanted = peft_losses(folder / "whole start/model", data)
        for layout in ("pp 2, vpp 2", "tp 2, dp 2, ZeRO"):
            found = train(program, data_file, folder / f"whole {layout}", *whole, *LAYOUTS[layout])
            compare_losses(f"with whole modules, {layout}", found, wanted)
        compare_logits(program, folder / "whole pp 2, vpp 2/model", batch, folder)
        compare_merged(program, folder / "whole pp 2, vpp 2/model", torch.float32, folder / "whole")


if __name__ == "__main__":
    main()
