"""Multi-head latent attention (DeepSeek V3) compared with transformers: values with layouts, MTP layers, training,
files in FP8 blocks.

latent_attention.py PROGRAM

Random tiny models, with and without a latent for queries, for which `concord probe` computes logits, loss and gradients
with each layout, also with MTP losses; 20 steps of `concord train`; and a folder as published on the hub, with FP8
weights and a scale per block. Exit code 77: transformers is missing, nothing was compared.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import preloaded

sys.path.insert(0, str(Path(__file__).parent))
from largest import largest
from random_models import differences, in_files, make_model, reference, torch, transformers  # exits with 77 if missing
from safetensors.torch import load_file, save_file
from transformers.modeling_layers import MtpLayer
import train_experts

SETTINGS = {
    "vocab_size": 128, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "max_position_embeddings": 64, "initializer_range": 0.2, "tie_word_embeddings": False,
    "q_lora_rank": 12, "kv_lora_rank": 10, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 8,
    "n_routed_experts": 8, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2, "moe_intermediate_size": 16,
    "n_shared_experts": 1, "routed_scaling_factor": 2.5, "first_k_dense_replace": 1, "num_nextn_predict_layers": 0,
    "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 1.0,
                        "original_max_position_embeddings": 16},
    "attn_implementation": "eager", "pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
MODELS = {"with a latent of queries": {},
          "without": {"q_lora_rank": None, "attention_bias": True, "rope_interleave": False, "v_head_dim": 14,
                      "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}}
# DeepSeek V3's keys with the choices of Kimi K2's published file.
KIMI = {"n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.827,
        "rope_parameters": SETTINGS["rope_parameters"] | {"factor": 32.0, "beta_fast": 1.0, "beta_slow": 1.0, "mscale": 1.0}}
EP = ["--expert_model_parallel_size", "2"]
TP = ["--tensor_model_parallel_size", "2"]
LAYOUTS = {
    "one process": [], "tp 2": [*TP, "--nproc", "2"], "tp 2, sequence parallel": [*TP, "--sequence_parallel", "--nproc", "2"],
    "pp 2": ["--pipeline_model_parallel_size", "2", "--nproc", "2"],
    "cp 2": ["--context_parallel_size", "2", "--nproc", "2"],
    "cp 2 by gathering, ep 2": ["--context_parallel_size", "2", "--cp_comm_type", "all_gather", *EP, "--nproc", "2"],
    "dp 2, ep 2": [*EP, "--nproc", "2"],
    "tp 2, ep 2, recomputation": [*TP, "--sequence_parallel", *EP, "--expert_tensor_parallel_size", "1", "--nproc", "2",
                                  "--recompute_granularity", "selective", "--recompute_modules", "core_attn", "layernorm"],
}
# Bounds for float32: largest difference, relative to the norm, and for logits and loss between layouts. hf_parity_test
# shows in float64 that gradients of layouts are the same up to the order of sums.
LOGITS, GRADIENT, BETWEEN = 1e-5, 1e-4, 1e-6


def run(*command):
    done = preloaded.run(command)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}\n{done.stderr}")


def probe(program, model, folder, *more):
    run(program, "probe", "--overwrite", "--model", str(model), "--batch", str(folder / "batch.safetensors"), "--out",
        str(folder / "dump.safetensors"), "--grads", *more)
    return load_file(str(folder / "dump.safetensors"))


def compare_layouts(program, name, family, settings, layouts, tokens, folder, model_type=None):
    model = make_model(family, settings, 3)
    torch.manual_seed(5)
    ids = torch.randint(0, settings["vocab_size"], (2, tokens))
    labels = torch.where(torch.rand(ids.shape) < 0.2, torch.full_like(ids, -100), ids)
    expected = reference(model, ids, labels)
    model.float().save_pretrained(folder / "model")
    config = json.loads((folder / "model" / "config.json").read_text())
    (folder / "model" / "config.json").write_text(json.dumps(config | {"model_type": model_type or family}))
    save_file({"input_ids": ids, "labels": labels}, str(folder / "batch.safetensors"))
    worst = {"logits": 0.0, "gradient": 0.0, "between": 0.0}
    first = None
    for layout, words in layouts.items():
        dump = probe(program, folder / "model", folder, "--dtype", "float32", *words)
        first = first or dump
        worst["logits"] = largest(worst["logits"], (dump["logits"].double() - expected["logits"]).abs().max().item())
        for what, tensor, share in differences(expected, dump):
            assert share <= GRADIENT, f"{name}, {layout}: {tensor} {what} by {share:.3g}, bound {GRADIENT:g}"
            worst["gradient"] = max(worst["gradient"], share)
        for tensor in ("logits", "loss"):
            share = ((dump[tensor].double() - first[tensor].double()).norm() / first[tensor].double().norm()).item()
            assert share <= BETWEEN, f"{name}, {layout}: {tensor} differs from one process by {share:.3g}"
            worst["between"] = max(worst["between"], share)
    assert worst["logits"] <= LOGITS, f"{name}: logits differ by {worst['logits']:.3g}, bound {LOGITS:g}"
    print(f"{name}, {len(layouts)} layouts: " + ", ".join(f"{key} {value:.2g}" for key, value in worst.items()), flush=True)


class Further(torch.nn.Module):
    """MTP layers: transformers' own, which it has for generation, with Megatron's loss."""

    def __init__(self, model, depth):
        super().__init__()
        decoder, norm = type(model.model.layers[-1]), type(model.model.norm)
        last = model.config.num_hidden_layers - 1
        self.layers = torch.nn.ModuleList(MtpLayer(model.config, decoder, norm, last) for _ in range(depth)).double()
        for name, parameter in self.named_parameters():
            torch.nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.2)

    def in_files(self, first, kind):
        """Yields (name in files, tensor) of weights or gradients."""
        for name, parameter in self.layers.named_parameters():
            number, _, rest = name.partition(".")
            rest = rest.replace("mtp_block.", "").replace("post_norm", "shared_head.norm")
            yield from in_files(f"model.layers.{first + int(number)}.{rest}", kind(parameter), "deepseek_v3")
        for name, buffer in self.layers.named_buffers():
            number, _, rest = name.partition(".")
            if kind(buffer) is not None:
                yield f"model.layers.{first + int(number)}.{rest.replace('mtp_block.', '')}", kind(buffer)

    def sums(self, model, ids, labels):
        """Returns for the model itself and each depth the sum of the losses of tokens, and the number of counted
        tokens."""
        hidden, count = model.model(input_ids=ids).last_hidden_state, ids.shape[1]
        positions = torch.arange(count).unsqueeze(0)
        angles = model.model.rotary_emb(hidden, positions)
        mask = torch.full((count, count), float("-inf"), dtype=hidden.dtype).triu(1)[None, None]
        sums = []
        for k in range(len(self.layers) + 1):
            if k > 0:
                later = torch.cat([ids[:, k:], torch.zeros_like(ids[:, :k])], 1)
                hidden = self.layers[k - 1](model.model.embed_tokens(later), hidden, angles, mask, positions, None)
            wanted = labels[:, 1 + k:].flatten()
            logits = model.lm_head(hidden)[:, :count - 1 - k].flatten(0, 1)
            sums.append(torch.stack([torch.nn.functional.cross_entropy(logits, wanted, reduction="sum"), (wanted != -100).sum()]))
        return torch.stack(sums)

    def loss(self, sums, factor):
        """Returns the model's own loss, and the loss including the depths."""
        plain, *self.losses = sums[:, 0] / sums[:, 1]
        return plain, plain + factor / len(self.losses) * sum(self.losses)


def compare_further(program, tied, folder):
    settings = SETTINGS | {"num_nextn_predict_layers": 2, "tie_word_embeddings": tied}
    model = make_model("deepseek_v3", settings, 13)
    further = Further(model, 2)
    torch.manual_seed(8)
    ids = torch.randint(0, SETTINGS["vocab_size"], (2, 24))
    labels = torch.where(torch.rand(ids.shape) < 0.3, torch.full_like(ids, -100), ids)
    expected = further_expected(model, further, further.sums(model, ids, labels))
    model.save_pretrained(folder / "model")
    tensors = load_file(str(folder / "model" / "model.safetensors"))
    copies = {f"model.layers.{2 + i}.{name}": torch.zeros(1) for i in (0, 1) for name in ("embed_tokens.weight", "shared_head.head.weight")}
    more = {name: tensor.detach().contiguous() for name, tensor in further.in_files(2, lambda parameter: parameter)}
    save_file(tensors | more | copies, str(folder / "model" / "model.safetensors"), metadata={"format": "pt"})
    layouts = ("one process", "tp 2, sequence parallel", "pp 2", "cp 2", "tp 2, ep 2, recomputation")
    worst = differences_of_further(program, folder, expected, {"input_ids": ids, "labels": labels}, layouts)
    # The same rows one after the other, of different lengths: what a depth predicts is of its own sequence.
    rows, cuts = [ids[:1, :16], ids[1:]], torch.tensor([0, 16, 40])
    own = [labels[:1, :16], torch.cat([ids[1:, :4], labels[1:, 4:]], 1)]  # the other must not predict these labels
    expected = further_expected(model, further, sum(further.sums(model, *row) for row in zip(rows, own)))
    own[1][0, 0] = -100  # nothing predicts the first token of a sequence
    packed = {"input_ids": torch.cat(rows, 1), "labels": torch.cat(own, 1), "cu_seqlens": cuts}
    worst = max(worst, differences_of_further(program, folder, expected, packed, ("one process", "cp 2")))
    print(f"further tokens, tied {tied}: {worst:.2g}", flush=True)
    train_further(program, folder, model, further)


def further_expected(model, further, sums):
    """Returns what a probe dumps: the loss without MTP, and the gradients with it."""
    model.zero_grad()
    further.zero_grad()
    plain, loss = further.loss(sums, 0.3)
    loss.backward()
    expected = {"loss": plain.detach().reshape(1)}
    for name, parameter in model.named_parameters():
        expected |= {"grad." + part: grad for part, grad in in_files(name, parameter.grad, "deepseek_v3")}
    return expected | {"grad." + name: grad for name, grad in further.in_files(2, lambda parameter: parameter.grad)}


def differences_of_further(program, folder, expected, batch, layouts):
    save_file(batch, str(folder / "batch.safetensors"))
    worst = 0.0
    for layout in layouts:
        dump = probe(program, folder / "model", folder, "--dtype", "float64", "--mtp_num_layers", "2",
                     "--mtp_loss_scaling_factor", "0.3", *LAYOUTS[layout])
        for what, tensor, share in differences(expected, dump):
            assert share <= 5e-6, f"further tokens, {layout}, {len(batch)} tensors: {tensor} {what} by {share:.3g}"
            worst = max(worst, share)
    return worst


def train_further(program, folder, model, further):
    """Four steps end with the same weights for all layouts, including all tensors of the files except the copies;
    the losses of both depths are logged."""
    torch.manual_seed(4)
    ids = torch.randint(0, SETTINGS["vocab_size"], (16, 24))
    save_file({"input_ids": ids, "labels": ids.clone()}, str(folder / "data.safetensors"))
    # Reductions start when a gradient is complete, so an incomplete one must not be mistaken for it.
    overlap = ["use_distributed_optimizer: true", "overlap_grad_reduce: true", "delay_grad_reduce: false"]
    layouts = {"one process": (1, 1, ["gradient_accumulation_steps: 4"]),
               "dp 2, ep 2": (2, 1, ["gradient_accumulation_steps: 2", "expert_model_parallel_size: 2", *overlap]),
               "pp 2, dp 2": (4, 1, ["gradient_accumulation_steps: 2", "pipeline_model_parallel_size: 2",
                                  'pipeline_model_parallel_layout: "E,t|t,m*2,L"', *overlap]),
               "cp 2": (2, 1, ["gradient_accumulation_steps: 4", "context_parallel_size: 2"]),
               "pp 2, both ends on one rank, dp 2": (4, 1, ["gradient_accumulation_steps: 2", "pipeline_model_parallel_size: 2",
                                                         "virtual_pipeline_model_parallel_size: 2", "pipeline_schedule: zb-v",
                                                         'pipeline_model_parallel_layout: "E|t|t|m*2,L"', *overlap]),
               "a log of four steps": (1, 4, ["gradient_accumulation_steps: 4"])}
    first, each, worst = None, None, 0.0
    with torch.no_grad():
        further.loss(further.sums(model, ids[:4], ids[:4]), 0.0)  # of the first step
    for name, (world, log, words) in layouts.items():
        (folder / "run.yaml").write_text("\n".join([
            f"model: {folder / 'model'}", f"train_data: {folder}/data.safetensors", f"output_dir: {folder}/out", "max_steps: 4",
            "shuffle: false", "per_device_train_batch_size: 1", "mtp_num_layers: 2", "learning_rate: 1.0e-3", "adam_epsilon: 1.0e-3",
            "overwrite_output_dir: true", "report_to: [none]", f"logging_steps: {log}", *words]))
        run(program, "train", "--config", str(folder / "run.yaml"), "--nproc", str(world))
        weights = load_file(str(folder / "out" / "model" / "model.safetensors"))
        first = first or weights
        logged = [[line[f"mtp_{k}_loss"] for line in train_experts.metrics_of(folder)] for k in (1, 2)]
        each = each or logged
        for k, (losses, loss, of_one) in enumerate(zip(logged, further.losses, each), 1):
            wanted = loss.item() if len(losses) > 1 else sum(of_one) / len(of_one)  # a log of all steps
            assert abs(losses[0] - wanted) <= 2e-6 * wanted, f"further tokens, {name}: mtp_{k}_loss is {losses[0]}, not {wanted}"
        source = load_file(str(folder / "model" / "model.safetensors"))
        copies = {tensor for tensor in source if tensor.endswith(("3.embed_tokens.weight", "2.embed_tokens.weight", "head.head.weight"))}
        assert set(weights) == set(first) == set(source) - copies, name
        for tensor, wanted in first.items():
            share = ((weights[tensor] - wanted).norm() / wanted.norm().clamp_min(1e-12)).item()
            assert share <= 1e-6, f"further tokens, trained under {name}: {tensor} differs by {share:.3g}"
            worst = max(worst, share)
        moved = {tensor for tensor, wanted in first.items() if not torch.equal(weights[tensor], source[tensor].float())}
        assert all(tensor in moved for tensor in weights if not tensor.endswith("correction_bias")), name
    print(f"further tokens, trained under {len(layouts)} layouts: {worst:.2g}", flush=True)


def compare_training(program, folder):
    """20 steps. Biases of experts are unchanged, as in transformers."""
    make_model("deepseek_v3", SETTINGS | {"initializer_range": 0.05}, 9).float().save_pretrained(folder / "trained")
    train_experts.compare_all(program, folder / "trained", aux=0.0, layouts={
        "latents, dp 2, ep 2": (2, ["expert_model_parallel_size: 2", "gradient_accumulation_steps: 2"]),
        "latents, tp 2, pp 2": (4, ["tensor_model_parallel_size: 2", "sequence_parallel: true",
                                    "pipeline_model_parallel_size: 2", "gradient_accumulation_steps: 4"]),
    })


def in_blocks(weight, block):
    """Converts a matrix to the format that DeepSeek publishes: FP8 and block scales."""
    rows, columns = weight.shape
    scales = torch.empty(-(-rows // block[0]), -(-columns // block[1]))
    quantised = torch.empty(rows, columns, dtype=torch.float8_e4m3fn)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            here = (slice(i * block[0], (i + 1) * block[0]), slice(j * block[1], (j + 1) * block[1]))
            scales[i, j] = weight[here].abs().max() / 448
            quantised[here] = (weight[here] / scales[i, j]).to(torch.float8_e4m3fn)
    return quantised, scales


def compare_blocks(program, folder):
    """Bitwise identical to a folder with element * scale in float32, rounded to the type of the run."""
    block = [16, 12]  # neither divides the sizes of all weights
    tensors = load_file(str(folder / "trained" / "model.safetensors"))
    published, plain = {}, {}
    for name, weight in tensors.items():
        published[name] = plain[name] = weight
        if name.endswith("_proj.weight") or name.endswith("kv_a_proj_with_mqa.weight"):
            published[name], scales = in_blocks(weight, block)
            published[name + "_scale_inv"] = scales
            whole = scales.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)[:weight.shape[0], :weight.shape[1]]
            plain[name] = published[name].float() * whole
    config = json.loads((folder / "trained" / "config.json").read_text())
    quantised = config | {"quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": block}}
    for kind, contents, text in (("plain", plain, config), ("published", published, quantised)):
        (folder / kind).mkdir()
        save_file(contents, str(folder / kind / "model.safetensors"), metadata={"format": "pt"})
        (folder / kind / "config.json").write_text(json.dumps(text))
    for dtype in ("float32", "bfloat16"):
        for layout in ("one process", "tp 2, sequence parallel", "dp 2, ep 2"):
            dumps = [probe(program, folder / kind, folder, "--dtype", dtype, "--weights", *LAYOUTS[layout])
                     for kind in ("plain", "published")]
            assert dumps[0].keys() == dumps[1].keys(), layout
            for name, tensor in dumps[0].items():
                assert torch.equal(tensor, dumps[1][name]), f"8-bit blocks, {dtype}, {layout}: {name}"
    # Saved files have neither scales nor their entries in the config.
    for kind in ("plain", "published"):
        (folder / "run.yaml").write_text("\n".join([
            f"model: {folder / kind}", f"train_data: {folder}/batch.safetensors", f"output_dir: {folder}/{kind}-out",
            "max_steps: 1", "learning_rate: 0", "weight_decay: 0", "moe_router_bias_update_rate: 0",
            "per_device_train_batch_size: 2", "report_to: [none]"]))
        run(program, "train", "--config", str(folder / "run.yaml"))
    saved = [load_file(str(folder / f"{kind}-out" / "model" / "model.safetensors")) for kind in ("plain", "published")]
    assert saved[0].keys() == saved[1].keys() == tensors.keys()
    assert all(torch.equal(saved[0][name], saved[1][name]) and torch.equal(saved[0][name], plain[name]) for name in tensors)
    assert "quantization_config" not in (folder / "published-out" / "model" / "config.json").read_text()
    published, out = str(folder / "published"), str(folder / "converted")
    for command, word in ((["convert", "--from", published, "--to", out, "--dtype", "bfloat16"], "conversion"),
                          (["merge", "--model", published, "--adapter", str(folder), "--out", out], "merge")):
        refused = subprocess.run([program, *command], capture_output=True, text=True)
        assert refused.returncode != 0 and f"scales, which a {word} does not apply" in refused.stderr, refused.stderr
    print("8-bit blocks: the same bits as their values", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    for name, more in MODELS.items():
        with tempfile.TemporaryDirectory() as folder:
            compare_layouts(arguments.program, name, "deepseek_v3", SETTINGS | more, LAYOUTS, 24, Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        compare_layouts(arguments.program, "Kimi K2", "deepseek_v3", SETTINGS | KIMI, LAYOUTS, 24, Path(folder), "kimi_k2")
    for tied in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            compare_further(arguments.program, tied, Path(folder))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        compare_training(arguments.program, folder)
        torch.manual_seed(6)
        ids = torch.randint(0, SETTINGS["vocab_size"], (2, 16))
        save_file({"input_ids": ids, "labels": ids.clone()}, str(folder / "batch.safetensors"))
        compare_blocks(arguments.program, folder)


if __name__ == "__main__":
    main()
