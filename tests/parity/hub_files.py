"""Folders as published on the hub, compared with transformers: GPT-OSS with experts in MXFP4, and Gemma 3 with
images.

hub_files.py PROGRAM

Random tiny models. MXFP4: the weights that `concord probe` reads are bitwise those of transformers' own conversion,
with layouts, and are saved as bfloat16. Gemma 3: logits and gradients of its text part, which is saved as a text model.
Exit code 77: transformers is missing, nothing was compared.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from random_models import differences, make_model, torch, transformers  # exits with 77 if missing
from latent_attention import EP, GRADIENT, LOGITS, TP, load_file, probe, run, save_file
from train_experts import GPT_OSS
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

WIDE = GPT_OSS | {"hidden_size": 64, "intermediate_size": 96}  # multiples of 32
GEMMA = {
    "text_config": {"vocab_size": 128, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
                    "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 5, "max_position_embeddings": 64,
                    "query_pre_attn_scalar": 8, "initializer_range": 0.2,
                    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    "vision_config": {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
                      "patch_size": 14},
    "mm_tokens_per_image": 4, "image_token_index": 120, "boi_token_index": 121, "eoi_token_index": 122}


def train_nothing(program, model, folder, world, *words):
    """Runs one step that changes no weight; returns what it saves."""
    (folder / "run.yaml").write_text("\n".join([
        f"model: {model}", f"train_data: {folder}/batch.safetensors", f"output_dir: {folder}/out", "max_steps: 1",
        "learning_rate: 0", "weight_decay: 0", "per_device_train_batch_size: 1", "report_to: [none]",
        "overwrite_output_dir: true", *words]))
    run(program, "train", "--config", str(folder / "run.yaml"), "--nproc", str(world))
    return load_file(str(folder / "out" / "model" / "model.safetensors"))


def compare_mxfp4(program, folder):
    make_model("gpt_oss", WIDE, 3).bfloat16().save_pretrained(folder / "model")
    tensors = load_file(str(folder / "model" / "model.safetensors"))
    config = json.loads((folder / "model" / "config.json").read_text())
    plain, published = {}, {}
    torch.manual_seed(2)
    for name, weight in tensors.items():
        plain[name] = published[name] = weight
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            continue
        experts, rows, columns = weight.shape
        blocks = torch.randint(0, 256, (experts, columns, rows // 32, 16), dtype=torch.uint8)
        scales = torch.randint(118, 126, (experts, columns, rows // 32), dtype=torch.uint8)
        scales[0, 0, 0] = 0  # the smallest there is
        del published[name]
        published |= {name + "_blocks": blocks, name + "_scales": scales}
        plain[name] = convert_moe_packed_tensors(blocks, scales)
    (folder / "published").mkdir()
    save_file(published, str(folder / "published" / "model.safetensors"), metadata={"format": "pt"})
    (folder / "published" / "config.json").write_text(json.dumps(config | {"quantization_config": {
        "quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}}))
    ids = torch.randint(0, WIDE["vocab_size"], (4, 16))
    save_file({"input_ids": ids, "labels": ids.clone()}, str(folder / "batch.safetensors"))
    for dtype, layout in (("float32", []), ("bfloat16", [*EP, "--nproc", "2"]), ("bfloat16", [*TP, "--nproc", "2"])):
        dump = probe(program, folder / "published", folder, "--dtype", dtype, "--weights", *layout)
        for name, wanted in plain.items():
            assert torch.equal(dump["weight." + name].float(), wanted.float()), f"MXFP4, {dtype}, {layout}: {name}"
    saved = train_nothing(program, folder / "published", folder, 2, "bf16: true", "expert_model_parallel_size: 2")
    assert set(saved) == set(plain) and all(saved[name].dtype == torch.bfloat16 and torch.equal(saved[name], plain[name]) for name in plain)
    assert "quantization_config" not in (folder / "out" / "model" / "config.json").read_text()
    transformers.AutoModelForCausalLM.from_pretrained(folder / "out" / "model")
    refused = subprocess.run([program, "convert", "--from", str(folder / "published"), "--to", str(folder / "converted"),
                              "--dtype", "float32"], capture_output=True, text=True)
    assert refused.returncode != 0 and "has type U8; such weights have scales" in refused.stderr, refused.stderr
    print(f"MXFP4: {len(published) - len(plain)} weights are those of transformers", flush=True)


def compare_images(program, folder):
    torch.manual_seed(3)
    model = transformers.Gemma3ForConditionalGeneration(transformers.Gemma3Config(**GEMMA)).double()
    model.config._attn_implementation = model.config.text_config._attn_implementation = "eager"
    ids = torch.randint(0, 100, (2, 24))
    labels = torch.where(torch.rand(ids.shape) < 0.2, torch.full_like(ids, -100), ids)
    output = model(input_ids=ids, labels=labels, token_type_ids=torch.zeros_like(ids))
    output.loss.backward()
    expected = {"logits": output.logits.detach(), "loss": output.loss.detach().reshape(1)}
    expected |= {"grad." + name.replace("model.language_model.", "model."): parameter.grad for name, parameter in model.named_parameters()
                 if name.startswith("model.language_model.")}
    model.float().save_pretrained(folder / "model")
    save_file({"input_ids": ids, "labels": labels}, str(folder / "batch.safetensors"))
    worst = 0.0
    for layout in ([], [*TP, "--nproc", "2"]):
        dump = probe(program, folder / "model", folder, "--dtype", "float32", *layout)
        assert (dump["logits"].double() - expected["logits"]).abs().max() <= LOGITS, layout
        for what, tensor, share in differences(expected, dump):
            assert share <= GRADIENT, f"images, {layout}: {tensor} {what} by {share:.3g}, bound {GRADIENT:g}"
            worst = max(worst, share)
    source = load_file(str(folder / "model" / "model.safetensors"))
    text = {name.removeprefix("language_model."): tensor for name, tensor in source.items() if name.startswith("language_model.")}
    saved = train_nothing(program, folder / "model", folder, 2, "tensor_model_parallel_size: 2")
    assert set(saved) == set(text) and all(torch.equal(saved[name], tensor) for name, tensor in text.items())
    alone = transformers.AutoModelForCausalLM.from_pretrained(folder / "out" / "model").double()
    assert type(alone).__name__ == "Gemma3ForCausalLM", type(alone)
    assert (alone(input_ids=ids).logits - expected["logits"]).abs().max() <= LOGITS
    (folder / "adapter.yaml").write_text("\n".join([
        f"model: {folder / 'model'}", f"train_data: {folder}/batch.safetensors", f"output_dir: {folder}/adapter", "max_steps: 1",
        "finetuning_type: lora", "lora_rank: 2", "per_device_train_batch_size: 1", "report_to: [none]"]))
    refused = subprocess.run([program, "train", "--config", str(folder / "adapter.yaml")], capture_output=True, text=True)
    assert refused.returncode != 0 and "which has images, is not supported: only its text part is trained" in refused.stderr, refused.stderr
    print(f"a model with images: {len(text)} of {len(source)} tensors, differences {worst:.2g}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    for compare in (compare_mxfp4, compare_images):
        with tempfile.TemporaryDirectory() as folder:
            compare(arguments.program, Path(folder))


if __name__ == "__main__":
    main()
