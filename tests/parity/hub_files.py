"""Folders as published on the hub, compared with transformers: GPT-OSS with experts in MXFP4, and models with images.

hub_files.py PROGRAM

Random tiny models. MXFP4: the weights that `concord probe` reads are bitwise those of transformers' own conversion,
with layouts, and are saved as bfloat16. Gemma 3 and Qwen 3.5, dense and with experts, which are then one tensor per layer
as published: logits and gradients of the text part; the whole folder is saved, with all that is not trained unchanged.
The error for an unknown model_type.
Exit code 77: transformers is missing, nothing was compared.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from random_models import differences, make_model, torch, transformers, use_float64  # exits with 77 if missing
from latent_attention import EP, GRADIENT, LOGITS, TP, load_file, probe, run, save_file
from train_experts import GPT_OSS
import family_layouts
import linear_attention
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

try:
    import peft
except ImportError:
    peft = None

WIDE = GPT_OSS | {"hidden_size": 64, "intermediate_size": 96}  # multiples of 32
GEMMA = {
    "text_config": {"vocab_size": 128, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
                    "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 5, "max_position_embeddings": 64,
                    "query_pre_attn_scalar": 8, "initializer_range": 0.2,
                    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    "vision_config": {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
                      "patch_size": 14},
    "mm_tokens_per_image": 4, "image_token_index": 120, "boi_token_index": 121, "eoi_token_index": 122}


LINEAR = ("qwen3_5", "qwen3_5_moe")
VISION = {"depth": 2, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "num_position_embeddings": 16, "out_hidden_size": 32}


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


def published(tensors):
    """Returns the tensors of a folder of Qwen 3.5 as published: the experts of a layer in two tensors, and an MTP layer."""
    merged, experts = {"mtp.fc.weight": torch.randn(32, 64), "mtp.norm.weight": torch.randn(32)}, {}
    for name, tensor in tensors.items():
        layer, _, rest = name.partition("experts.")
        if rest:
            number, kind = rest.split(".")[:2]
            experts.setdefault(layer + "experts.", {}).setdefault(int(number), {})[kind] = tensor
        else:
            merged[name] = tensor
    for layer, each in experts.items():
        merged[layer + "gate_up_proj"] = torch.stack([torch.cat([each[i]["gate_proj"], each[i]["up_proj"]]) for i in sorted(each)])
        merged[layer + "down_proj"] = torch.stack([each[i]["down_proj"] for i in sorted(each)])
    return merged


def qwen_config(config_class, more):
    settings = {key: value for key, value in linear_attention.SETTINGS.items() if "expert" not in key or more}
    return config_class(text_config=settings | {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]},
                        vision_config=VISION, image_token_id=120, video_token_id=121, vision_start_token_id=122, vision_end_token_id=123)


def plain_config(config_class, vision):
    text = {"vocab_size": 128, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 8, "initializer_range": 0.2, "bos_token_id": None, "eos_token_id": None,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}}
    return config_class(text_config=text, vision_config=VISION | vision, image_token_id=120, video_token_id=121,
                        vision_start_token_id=122, vision_end_token_id=123)


def compare_images(program, folder, model):
    torch.manual_seed(3)
    name = model.config.model_type
    model = model.double()
    if name in LINEAR:
        model.set_experts_implementation("eager")  # the default has no float64
        use_float64(sys.modules[type(model).__module__], "torch_chunk_gated_delta_rule")
    model.config._attn_implementation = model.config.text_config._attn_implementation = "eager"
    ids = torch.randint(1, 100, (2, 24))  # transformers gives the padding, 0, no gradient
    labels = torch.where(torch.rand(ids.shape) < 0.2, torch.full_like(ids, -100), ids)
    output = model(input_ids=ids, labels=labels, **({"token_type_ids": torch.zeros_like(ids)} if name == "gemma3" else {}))
    output.loss.backward()
    expected = {"logits": output.logits.detach(), "loss": output.loss.detach().reshape(1)}
    for key, parameter in model.named_parameters():
        if key.startswith(("model.language_model.", "lm_head.")):
            expected["grad." + key.replace("model.language_model.", "model.")] = parameter.grad
    model.float().save_pretrained(folder / "model")
    if name in LINEAR:
        tensors = published(load_file(str(folder / "model" / "model.safetensors")))
        save_file(tensors, str(folder / "model" / "model.safetensors"), metadata={"format": "pt"})
    save_file({"input_ids": ids, "labels": labels}, str(folder / "batch.safetensors"))
    worst = 0.0
    for layout in ([], [*TP, "--nproc", "2"], *([[*EP, "--nproc", "2"]] if "moe" in name else [])):
        dump = probe(program, folder / "model", folder, "--dtype", "float32", *layout)
        assert (dump["logits"].double() - expected["logits"]).abs().max() <= LOGITS, layout
        for what, tensor, share in differences(expected, dump):
            assert share <= GRADIENT, f"{name}, {layout}: {tensor} {what} by {share:.3g}, bound {GRADIENT:g}"
            worst = max(worst, share)
    source = load_file(str(folder / "model" / "model.safetensors"))
    for words in (["tensor_model_parallel_size: 2"], *([["pipeline_model_parallel_size: 2"]] if name != "gemma3" else [])):
        saved = train_nothing(program, folder / "model", folder, 2, *words)
        assert set(saved) == set(source), set(saved) ^ set(source)
        assert all(torch.equal(saved[key], tensor) for key, tensor in source.items()), f"{name}, {words}"
    whole, info = type(model).from_pretrained(folder / "out" / "model", output_loading_info=True)
    if "moe" in name:
        whole.set_experts_implementation("eager")
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    assert (whole.double()(input_ids=ids).logits - expected["logits"]).abs().max() <= LOGITS
    check_adapter(program, folder, whole, ids)
    print(f"{name}, a model with images: {len(source)} tensors, differences {worst:.2g}", flush=True)


def check_adapter(program, folder, model, ids):
    """peft loads an adapter of the text part for the whole model, with all of its tensors, and computes the same."""
    if peft is None:
        return print("peft is missing: adapters were not compared", flush=True)
    (folder / "adapter.yaml").write_text("\n".join([
        f"model: {folder / 'model'}", f"train_data: {folder}/batch.safetensors", f"output_dir: {folder}/adapter", "max_steps: 2",
        "finetuning_type: lora", "lora_rank: 2", "learning_rate: 0.01", "per_device_train_batch_size: 1", "report_to: [none]",
        f"lora_target: [o_proj{', in_proj_qkv' if model.config.model_type in LINEAR else ''}]", "overwrite_output_dir: true"]))
    run(program, "train", "--config", str(folder / "adapter.yaml"))
    adapter = folder / "adapter" / "model"
    dump = probe(program, folder / "model", folder, "--dtype", "float32", "--adapter_name_or_path", str(adapter))
    adapted = peft.PeftModel.from_pretrained(model.float(), str(adapter))
    names = {key.replace(".default", "") for key in adapted.state_dict() if "lora_" in key and "vision_tower" not in key}
    assert names == set(load_file(str(adapter / "adapter_model.safetensors"))), "peft has other matrices"
    with torch.no_grad():
        plain = dump["logits"].double() - adapted.double()(input_ids=ids).logits
    assert plain.abs().max() <= LOGITS, plain.abs().max()


def compare_all_images(program, folder):
    models = {"gemma3": lambda: transformers.Gemma3ForConditionalGeneration(transformers.Gemma3Config(**GEMMA)),
              "dense": lambda: transformers.Qwen3_5ForConditionalGeneration(qwen_config(transformers.Qwen3_5Config, False)),
              "qwen3_vl": lambda: transformers.Qwen3VLForConditionalGeneration(plain_config(transformers.Qwen3VLConfig, {"deepstack_visual_indexes": [0]})),
              "qwen2_5_vl": lambda: transformers.Qwen2_5_VLForConditionalGeneration(plain_config(transformers.Qwen2_5_VLConfig, {"fullatt_block_indexes": [1]})),
              "experts": lambda: transformers.Qwen3_5MoeForConditionalGeneration(qwen_config(transformers.Qwen3_5MoeConfig, True))}
    for name, make in models.items():
        torch.manual_seed(3)
        (folder / name).mkdir()
        compare_images(program, folder / name, make())


def check_unknown(program, folder):
    """The error for an unknown model_type names the nearest family and what differs."""
    make_model("hunyuan_v1_dense", family_layouts.settings_of("hunyuan_v1_dense"), 3).float().save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "hunyuan_v2_dense", "new_factor": 3.0}))
    tensors = load_file(str(folder / "model.safetensors"))
    del tensors["model.norm.weight"]
    more = {f"model.layers.{i}.more.weight": torch.zeros(2) for i in (0, 1)}
    save_file(tensors | more, str(folder / "model.safetensors"), metadata={"format": "pt"})
    refused = subprocess.run([program, "generate", "--model", str(folder), "--prompt", "x"], capture_output=True, text=True)
    for words in ("the nearest is hunyuan_v1_dense, which does not know", "new_factor", "and has no tensors model.layers.N.more.weight",
                  "and needs the tensors model.norm.weight"):
        assert refused.returncode != 0 and words in refused.stderr, (words, refused.stderr)
    print("an unknown model_type: the nearest family and what differs", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    for compare in (compare_mxfp4, compare_all_images, check_unknown):
        with tempfile.TemporaryDirectory() as folder:
            compare(arguments.program, Path(folder))


if __name__ == "__main__":
    main()
