"""Attention through latents (DeepSeek V3) beside transformers: values under layouts, training, files in 8-bit blocks.

latent_attention.py PROGRAM

Random tiny models, with and without a latent of queries, of which `concord probe` computes logits, loss and gradients
under each layout; 20 steps of `concord train`; and a folder as the hub has it, with weights in 8-bit floats and a scale
for each block. Exit code 77: transformers is not there, nothing was compared.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from random_models import differences, make_model, reference, torch, transformers  # exits with 77 where they are not
from safetensors.torch import load_file, save_file
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
# Of float32: largest difference, share of the norm, and of logits and loss between layouts. That gradients of layouts are the
# same up to the order of sums is shown in float64 by hf_parity_test.
LOGITS, GRADIENT, BETWEEN = 1e-5, 1e-4, 1e-6


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}\n{done.stderr}")


def probe(program, model, folder, *more):
    run(program, "probe", "--model", str(model), "--batch", str(folder / "batch.safetensors"), "--out",
        str(folder / "dump.safetensors"), "--grads", *more)
    return load_file(str(folder / "dump.safetensors"))


def compare_layouts(program, name, more, folder):
    model = make_model("deepseek_v3", SETTINGS | more, 3)
    torch.manual_seed(5)
    ids = torch.randint(0, SETTINGS["vocab_size"], (2, 24))
    labels = torch.where(torch.rand(ids.shape) < 0.2, torch.full_like(ids, -100), ids)
    expected = reference(model, ids, labels)
    model.float().save_pretrained(folder / "model")
    save_file({"input_ids": ids, "labels": labels}, str(folder / "batch.safetensors"))
    worst = {"logits": 0.0, "gradient": 0.0, "between": 0.0}
    first = None
    for layout, words in LAYOUTS.items():
        dump = probe(program, folder / "model", folder, "--dtype", "float32", *words)
        first = first or dump
        worst["logits"] = max(worst["logits"], (dump["logits"].double() - expected["logits"]).abs().max().item())
        for what, tensor, share in differences(expected, dump):
            assert share <= GRADIENT, f"{name}, {layout}: {tensor} {what} by {share:.3g}, bound {GRADIENT:g}"
            worst["gradient"] = max(worst["gradient"], share)
        for tensor in ("logits", "loss"):
            share = ((dump[tensor].double() - first[tensor].double()).norm() / first[tensor].double().norm()).item()
            assert share <= BETWEEN, f"{name}, {layout}: {tensor} differs from one process by {share:.3g}"
            worst["between"] = max(worst["between"], share)
    assert worst["logits"] <= LOGITS, f"{name}: logits differ by {worst['logits']:.3g}, bound {LOGITS:g}"
    print(f"{name}, {len(LAYOUTS)} layouts: " + ", ".join(f"{key} {value:.2g}" for key, value in worst.items()), flush=True)


def compare_training(program, folder):
    """20 steps. Biases of experts stay as they are, as in transformers."""
    make_model("deepseek_v3", SETTINGS | {"initializer_range": 0.05}, 9).float().save_pretrained(folder / "trained")
    train_experts.compare_all(program, folder / "trained", aux=0.0, layouts={
        "latents, dp 2, ep 2": (2, ["expert_model_parallel_size: 2", "gradient_accumulation_steps: 2"]),
        "latents, tp 2, pp 2": (4, ["tensor_model_parallel_size: 2", "sequence_parallel: true",
                                    "pipeline_model_parallel_size: 2", "gradient_accumulation_steps: 4"]),
    })


def in_blocks(weight, block):
    """As DeepSeek publishes a matrix: 8-bit floats and the scales that they are multiplied with."""
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
    """The same bits as those of a folder with element * scale in float32, rounded to the type of the run."""
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
    # What is saved has neither scales nor what the config says of them.
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
            compare_layouts(arguments.program, name, more, Path(folder))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        compare_training(arguments.program, folder)
        torch.manual_seed(6)
        ids = torch.randint(0, SETTINGS["vocab_size"], (2, 16))
        save_file({"input_ids": ids, "labels": ids.clone()}, str(folder / "batch.safetensors"))
        compare_blocks(arguments.program, folder)


if __name__ == "__main__":
    main()
