"""Settings files that other projects publish, given to `concord train`: published_test.py PROGRAM [PART OF A NAME...]

settings/ has the files (make.py extracts them). Each is read in a folder in which its paths exist: tiny random models
under the names of the published ones, generated data, a tokenizer. `--print_config` accepts the file as published, or
rejects it for the settings that docs/published-settings.md lists, which CONCORD_WRITE_DOCS=1 writes again. A file that is accepted trains for 2 steps, with the sizes of CUT or
OVERRIDES, and has finite losses. A file in NATIVE has the settings, losses, gradient norms, learning rates and weights of
a run with Concord's own names, bit for bit. Exit code 77: a package is missing, nothing was tested.
"""

import concurrent.futures
import dataclasses
import json
import math
import os
import re
import struct
import sys
import tempfile
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "parity"))
import preloaded

try:
    import jinja2  # noqa: F401, in the program's own Python process
    import PIL.Image
    import tokenizers  # noqa: F401
    import torch
    import transformers
    import yaml
except ImportError as missing:
    print(f"skipped: {missing}; ./run installs torch and transformers into .venv")
    sys.exit(77)

GOLDEN = HERE.parent / "golden"
PAGE = HERE.parent.parent / "docs" / "published-settings.md"
VOCABULARY = 384  # the tokenizer has 330
MAX_RANKS = 2

# The rule by which a command line is cut before it trains: these arguments get these values, others keep the published
# ones. cut_layout() cuts the sizes of parallelism.
CUT = {
    "num-layers": 2, "moe-layer-freq": "[0]*1+[1]*1", "hidden-size": 64, "ffn-hidden-size": 96, "num-attention-heads": 4,
    "num-query-groups": 2, "kv-channels": 16, "q-lora-rank": 16, "kv-lora-rank": 16, "qk-head-dim": 16,
    "qk-pos-emb-head-dim": 8, "v-head-dim": 16, "num-experts": 4, "moe-router-topk": 2, "moe-ffn-hidden-size": 96,
    "moe-shared-expert-intermediate-size": 96, "moe-router-num-groups": 2, "moe-router-group-topk": 1,
    "vocab-size": VOCABULARY, "padded-vocab-size": VOCABULARY, "make-vocab-size-divisible-by": 1, "seq-length": 64,
    "global-batch-size": 2, "micro-batch-size": 1, "train-iters": 2, "lr-decay-iters": 2, "lr-warmup-iters": 1,
    "train-samples": 4, "lr-decay-samples": 4, "lr-warmup-samples": 2, "log-interval": 1, "eval-iters": 1,
    "eval-interval": 2, "save-interval": 2,
}
# The rule for files: the command line overrides them with these arguments, and with the sizes of cut_layout().
OVERRIDES = ["--exit_interval", "2", "--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "2",
             "--logging_steps", "1", "--save_strategy", "steps", "--report_to", "none", "--cutoff_len", "64", "--seq_length", "64"]
# Sizes of parallelism, by axis; cut_layout() keeps the first one.
AXES = {
    "tp": ("tensor_model_parallel_size", "parallelism.tensor_parallel_degree", "tensor_parallel.autotp_size"),
    "pp": ("pipeline_model_parallel_size", "parallelism.pipeline_parallel_degree"),
    "cp": ("context_parallel_size", "parallelism.context_parallel_degree"),
    "ep": ("expert_model_parallel_size", "parallelism.expert_parallel_degree"),
    "etp": ("expert_tensor_parallel_size", "parallelism.expert_tensor_parallel_degree"),
}

# Families of the published models, by parts of their names; the first match counts.
FAMILIES = [("Qwen3-VL-30B", "qwen3_vl_moe"), ("Qwen3-VL", "qwen3_vl"), ("Qwen3.5-35B", "qwen3_5_moe"), ("Qwen3.5", "qwen3_5"),
            ("Qwen3-30B", "qwen3_moe"), ("Qwen3", "qwen3"), ("Qwen2.5-VL", "qwen2_5_vl"), ("Qwen2-VL", "qwen2_vl"),
            ("Qwen2", "qwen2"), ("MOSS-VL", "moss_vl"), ("lama", "llama")]
SHAPE = {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128, "pad_token_id": None,
         "bos_token_id": None, "eos_token_id": None}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
# config.json of models that files do not name: torchtitan's own, and those that Megatron's arguments describe once CUT
# has cut them. Family and what differs from SHAPE.
CONFIGS = {
    "llama": ("llama", {}),
    "qwen3": ("qwen3", {}),
    "qwen3_moe": ("qwen3_moe", EXPERTS),
    "gpt_oss": ("gpt_oss", {"num_local_experts": 4, "num_experts_per_tok": 2,
                            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}),
    "deepseek_v3": ("deepseek_v3", {
        "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "moe_intermediate_size": 64,
        "first_k_dense_replace": 1, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
        "v_head_dim": 16, "num_key_value_heads": 4}),
    "megatron_mixtral": ("mixtral", {
        "intermediate_size": 96, "num_local_experts": 4, "num_experts_per_tok": 2, "initializer_range": 0.01,
        "rms_norm_eps": 1e-5, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "sliding_window": None}),
    "megatron_qwen3": ("qwen3", {
        "intermediate_size": 96, "initializer_range": 0.02, "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
}
# Weights that the published model stores quantized.
QUANTIZED = {"AWQ": "awq", "GPTQ": "gptq", "AQLM": "aqlm"}
TEMPLATE = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
            "{% for part in m.content %}{{ part.text if part.type == 'text' else '<|image_pad|>' }}{% endfor %}{% endif %}<|im_end|>\n"
            "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
IMAGE = 333  # the token


# What the published file leaves to the command line of its program or to code, by the beginning of its name.
ADDED = {
    "LLaMA-Factory/examples/accelerate": ["--model", "qwen2", "--train_data", "tokens"],
    "LLaMA-Factory/examples/deepspeed": ["--model", "qwen2", "--train_data", "tokens"],
    "ROLL/examples/qwen2.5-7B-rlvr_megatron": ["--model", "qwen2", "--train_data", "chats.jsonl"],
    "torchtitan/torchtitan/models/deepseek_v3": ["--model_config", "deepseek_v3.json", "--train_data", "tokens"],
    "torchtitan/torchtitan/models/gpt_oss": ["--model_config", "gpt_oss.json", "--train_data", "tokens"],
    "torchtitan/torchtitan/models/llama3": ["--model_config", "llama.json", "--train_data", "tokens"],
    "torchtitan/torchtitan/models/qwen3": ["--model_config", "qwen3.json", "--train_data", "tokens"],
    "torchtitan/torchtitan/models/qwen3/train_configs/qwen3_moe": ["--model_config", "qwen3_moe.json", "--train_data", "tokens"],
    "transformers": ["--model", "qwen2", "--train_data", "tokens"],
    "trl/examples": ["--train_data", "texts.jsonl"],
    "trl/trl/trainer/dpo": ["--stage", "dpo", "--model", "qwen2", "--train_data", "pairs.jsonl"],
    "trl/trl/trainer/reward": ["--stage", "rm", "--model", "qwen2", "--train_data", "pairs.jsonl"],
    "trl/trl/trainer/sft": ["--stage", "sft", "--model", "qwen2", "--train_data", "chats.jsonl"],
}
# Arguments of Megatron that other scripts or the tokenizer add, unless one of the names is given.
ADDED_TO_MEGATRON = [
    ({"--vocab-size", "--padded-vocab-size"}, ["--vocab-size", str(VOCABULARY)]),
    ({"--data-path", "--mock-data"}, ["--data-path", "data"]),
    ({"--train-iters", "--train-samples"}, ["--train-iters", "2"]),
    ({"--global-batch-size"}, ["--global-batch-size", "2"]),
    ({"--log-interval"}, ["--log-interval", "1"]),
]

# What LLaMA-Factory does with images unless a file says otherwise.
IMAGE_DEFAULTS = (" --freeze_vision_tower true --freeze_multi_modal_projector true --image_max_pixels 589824"
                  " --image_min_pixels 1024 --video_max_pixels 65536 --video_min_pixels 256 --video_fps 2 --video_maxlen 128")

# The same settings with Concord's own names, without those that are cut.
NATIVE = {
    "LLaMA-Factory/examples/accelerate/fsdp_config_offload.yaml":
        "--model qwen2 --train_data tokens --bf16 --use_distributed_optimizer --optimizer_cpu_offload",
    "LLaMA-Factory/examples/deepspeed/ds_z3_config.json":
        "--model qwen2 --train_data tokens --use_distributed_optimizer",
    "LLaMA-Factory/examples/megatron/qwen3_moe_full.yaml":
        "--model Qwen/Qwen3-30B-A3B-Instruct-2507 --stage sft --finetuning_type full --dataset alpaca_en_demo --dataset_dir data"
        " --learning_rate 3e-6 --lr_scheduler_type constant --num_train_epochs 2 --bf16 --save_steps 100 --pipeline_model_parallel_size 2"
        " --use_distributed_optimizer --overlap_param_gather --overlap_grad_reduce --recompute_granularity full" + IMAGE_DEFAULTS,
    "LLaMA-Factory/examples/train_full/qwen3_full_sft.yaml":
        "--model Qwen/Qwen3-4B-Instruct-2507 --stage sft --finetuning_type full --dataset identity,alpaca_en_demo --dataset_dir data"
        " --use_distributed_optimizer --max_samples 1000 --ddp_timeout 180000000 --overwrite_output_dir"
        " --learning_rate 1e-5 --lr_scheduler_type cosine --warmup_ratio 0.1 --num_train_epochs 3 --bf16" + IMAGE_DEFAULTS,
    "LLaMA-Factory/examples/train_lora/qwen3_lora_dpo.yaml":
        "--model Qwen/Qwen3-4B-Instruct-2507 --stage dpo --finetuning_type lora --lora_rank 8 --lora_target all-linear"
        " --max_samples 1000 --ddp_timeout 180000000 --overwrite_output_dir"
        " --pref_beta 0.1 --pref_loss sigmoid --dataset dpo_en_demo --dataset_dir data --learning_rate 5e-6"
        " --lr_scheduler_type cosine --warmup_ratio 0.1 --num_train_epochs 3 --bf16" + IMAGE_DEFAULTS,
    "LLaMA-Factory/examples/train_lora/qwen3_lora_sft.yaml":
        "--model Qwen/Qwen3-4B-Instruct-2507 --stage sft --finetuning_type lora --lora_rank 8 --lora_target all-linear"
        " --max_samples 1000 --ddp_timeout 180000000 --overwrite_output_dir"
        " --dataset identity,alpaca_en_demo --dataset_dir data --learning_rate 1e-4 --lr_scheduler_type cosine"
        " --warmup_ratio 0.1 --num_train_epochs 3 --bf16" + IMAGE_DEFAULTS,
    "Megatron-LM/examples/mixtral/train_mixtral_8x7b_distributed.sh":
        "--model_config megatron_mixtral.json --train_data data --split 99990,8,2 --learning_rate 1e-4 --min_lr 1e-5"
        " --lr_scheduler_type cosine --max_steps 2 --lr_decay_steps 2 --warmup_steps 1 --weight_decay 0.1 --max_grad_norm 1 --bf16"
        " --moe_router_load_balancing_type aux_loss --moe_aux_loss_coeff 1e-2 --use_distributed_optimizer"
        " --overlap_param_gather --overlap_grad_reduce --pipeline_model_parallel_size 2 --eval_iters 1 --eval_steps 2",
    "Megatron-LM/examples/post_training/modelopt/conf/Qwen/Qwen3-0.6B.sh":
        "--model_config megatron_qwen3.json --train_data data --max_steps 2 --bf16",
    "ROLL/examples/qwen2.5-7B-rlvr_megatron/rlvr_config.yaml":
        "--model qwen2 --train_data chats.jsonl --learning_rate 1e-6 --weight_decay 0 --warmup_steps 20 --num_train_epochs 50"
        " --use_distributed_optimizer --recompute_granularity full",
    "torchtitan/torchtitan/models/llama3/train_configs/llama3_8b.toml":
        "--model_config llama.json --train_data tokens --optimizer adam --learning_rate 3e-4 --adam_epsilon 1e-8"
        " --lr_scheduler_type linear --warmup_steps 200 --max_grad_norm 1.0 --max_steps 1000"
        " --eval_steps 500 --recompute_granularity selective",
    "transformers/src/transformers/training_args.py":
        "--model qwen2 --train_data tokens --optimizer adam --learning_rate 5e-5 --lr_scheduler_type linear --warmup_steps 0"
        " --weight_decay 0 --adam_beta1 0.9 --adam_beta2 0.999 --adam_epsilon 1e-8 --max_grad_norm 1 --seed 42 --dataloader_drop_last false",
    "trl/trl/trainer/dpo_config.py":
        "--stage dpo --model qwen2 --train_data pairs.jsonl --optimizer adam --learning_rate 1e-6 --lr_scheduler_type linear"
        " --weight_decay 0 --adam_beta1 0.9 --adam_beta2 0.999 --adam_epsilon 1e-8 --max_grad_norm 1 --bf16 --pref_beta 0.1"
        " --recompute_granularity full --pref_loss sigmoid --dpo_label_smoothing 0 --seed 42 --dataloader_drop_last false",
    "trl/trl/trainer/sft_config.py":
        "--stage sft --model qwen2 --train_data chats.jsonl --optimizer adam --learning_rate 2e-5 --lr_scheduler_type linear"
        " --recompute_granularity full --weight_decay 0 --adam_beta1 0.9 --adam_beta2 0.999 --adam_epsilon 1e-8 --max_grad_norm 1 --bf16 --seed 42"
        " --packing_strategy best_fit --dataloader_drop_last false",
}


# ----------------------------------------------------------------------------------------------------- published files


@dataclasses.dataclass(eq=False)
class Published:
    name: str  # of the file in settings/
    content: dict

    @property
    def program(self):
        return self.content["program"]

    @property
    def kind(self):
        """words, yaml, toml or json."""
        return next(kind for kind in ("words", "toml", "json", "yaml") if kind in self.content)

    def settings(self):
        """All settings by name, those of a mapping also by NAME.NAME."""
        if self.kind == "words":
            words = [word.split("=", 1)[0] if word.startswith("--") else word for word in self.content["words"]]
            return {name[2:].replace("-", "_"): value for name, value in zip(words, words[1:] + [""]) if name.startswith("--")}
        parse = {"yaml": yaml.safe_load, "toml": tomllib.loads, "json": json.loads}[self.kind]
        return dict(flat(parse(self.content[self.kind])))


def flat(mapping, prefix=""):
    for name, value in mapping.items():
        yield prefix + name, value
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
            yield from flat(value) if name.endswith(("_args", "_config")) else []


def read_published(parts):
    """Returns the files of settings/ whose name contains one of |parts|, or all of them."""
    root = HERE / "settings"
    names = sorted(str(path.relative_to(root))[:-len(".json")] for path in root.rglob("*.json"))
    return [Published(name, json.loads((root / f"{name}.json").read_text())) for name in names
            if not parts or any(part in name for part in parts)]


def layout(published):
    """The sizes of parallelism of a file, by axis."""
    settings = published.settings()
    found = {axis: [int(settings[name]) for name in names if name in settings] for axis, names in AXES.items()}
    return {axis: sizes[0] for axis, sizes in found.items() if sizes}


def cut_layout(sizes):
    """At most MAX_RANKS ranks: the first axis that is split keeps two ranks."""
    kept = next((axis for axis in AXES if sizes.get(axis, 1) > 1), None)
    return {axis: min(size, MAX_RANKS) if axis == kept else 1 for axis, size in sizes.items()}


def world(sizes):
    tensor, pipeline, context, expert = (sizes.get(axis, 1) for axis in ("tp", "pp", "cp", "ep"))
    return pipeline * math.lcm(tensor * context, expert * sizes.get("etp", tensor))


# --------------------------------------------------------------------------------------------------------------- inputs


def write_model(folder, name):
    family = next((family for part, family in FAMILIES if part in name), None)
    folder.mkdir(parents=True)
    torch.manual_seed(1)
    if family in ("llama", "qwen2", "qwen3", "qwen3_moe"):
        shape = SHAPE | (EXPERTS if family == "qwen3_moe" else {})
        config = transformers.AutoConfig.for_model(family, **shape)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    elif family in ("qwen3_5", "qwen3_5_moe"):
        shape = SHAPE | (EXPERTS | {"shared_expert_intermediate_size": 64} if family == "qwen3_5_moe" else {})
        text = shape | {"layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2,
                        "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16}
        vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 64}
        config = transformers.AutoConfig.for_model(family, text_config=text, vision_config=vision)
        transformers.AutoModelForImageTextToText.from_config(config).save_pretrained(folder)
    elif family in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"):
        vision = {"depth": 1, "num_heads": 2, **({"hidden_size": 64, "embed_dim": 32} if family == "qwen2_vl" else
                                                 {"hidden_size": 32, "intermediate_size": 64, "out_hidden_size": 64})}
        deepstack = {"deepstack_visual_indexes": [0]}
        vision |= {"qwen3_vl": deepstack, "qwen3_vl_moe": deepstack, "qwen2_5_vl": {"fullatt_block_indexes": [0]}}.get(family, {})
        shape = SHAPE | (EXPERTS | {"moe_intermediate_size": 48} if family == "qwen3_vl_moe" else {})
        rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 2, 2]}
        config = transformers.AutoConfig.for_model(family, text_config=shape | {"rope_parameters": rope}, vision_config=vision,
                                                   image_token_id=IMAGE, video_token_id=IMAGE + 1)
        transformers.AutoModelForImageTextToText.from_config(config).save_pretrained(folder)
        (folder / "preprocessor_config.json").write_text(json.dumps({
            "image_processor_type": "Qwen2VLImageProcessor", "patch_size": config.vision_config.patch_size, "temporal_patch_size": 2,
            "merge_size": 2, "size": {"shortest_edge": 1024, "longest_edge": 4096}}))
    elif family in transformers.CONFIG_MAPPING:
        transformers.AutoConfig.for_model(family).save_pretrained(folder)
    else:
        (folder / "config.json").write_text(json.dumps({"model_type": family}))
    config = json.loads((folder / "config.json").read_text())
    for part, method in QUANTIZED.items():
        if part in name:
            config["quantization_config"] = {"quant_method": method, "bits": 4}
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = json.loads((GOLDEN / "tokenizer" / "qwen" / "tokenizer.json").read_text())
    last = tokenizer["added_tokens"][-1]
    tokenizer["added_tokens"].append(last | {"id": IMAGE, "content": "<|image_pad|>"})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "eos_token": "<|im_end|>"}))


def write_tokens(prefix):
    """Megatron's .bin and .idx: so many documents that the smallest published share, 2 of 100,000, is a sample."""
    documents, length = 100_000, 64
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, VOCABULARY, (documents * length,), generator=generator, dtype=torch.int32)
    prefix.with_suffix(".bin").write_bytes(tokens.to(torch.uint16).numpy().tobytes())
    lengths = torch.full((documents,), length, dtype=torch.int32)
    begins = torch.arange(documents, dtype=torch.int64) * length * 2
    numbers = torch.arange(documents + 1, dtype=torch.int64)
    head = struct.pack("<9sQBQQ", b"MMIDIDX", 1, 8, documents, documents + 1)  # version, uint16, sequences, documents
    prefix.with_suffix(".idx").write_bytes(head + b"".join(each.numpy().tobytes() for each in (lengths, begins, numbers)))


TEXTS = [{"text": f"some text about {i} " * 20} for i in range(40)]
CHATS = [{"messages": [{"role": "user", "content": f"question {i}"}, {"role": "assistant", "content": f"answer {i * i}"}]}
         for i in range(40)]
PAIRS = [{"prompt": f"question {i}", "chosen": f"yes, {i}", "rejected": f"no, {i + 1}"} for i in range(40)]
IMAGES = [{"messages": [{"role": "user", "content": f"<image>question {i}"}, chat["messages"][1]], "images": ["image.png"]}
          for i, chat in enumerate(CHATS)]
IMAGE_PAIRS = [{"messages": row["messages"][:1], "chosen": row["messages"][1], "rejected": {"role": "assistant", "content": "no"},
                "images": row["images"]} for row in IMAGES]
TAGS = {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}
ALPACA = [{"instruction": f"question {i}", "input": "", "output": f"answer {i * i}"} for i in range(40)]
# LLaMA-Factory's data sets by the beginning of their names: rows, and what dataset_info.json has besides the file.
DATA_SETS = {
    "c4": (TEXTS, {"columns": {"prompt": "text"}}),
    "dpo": (PAIRS, {"ranking": True, "columns": {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected"}}),
    **{name: (IMAGES, {"formatting": "sharegpt", "columns": {"messages": "messages", "images": "images"}, "tags": TAGS})
       for name in ("mllm_demo", "llava")},
    "rlhf_v": (IMAGE_PAIRS, {"formatting": "sharegpt", "ranking": True, "tags": TAGS, "columns": {
        "messages": "messages", "chosen": "chosen", "rejected": "rejected", "images": "images"}}),
    "": (ALPACA, {}),
}


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_data_sets(folder, names):
    info, folder = {}, folder / "data"
    folder.mkdir()
    for name in names:
        rows, description = next(content for begin, content in DATA_SETS.items() if name.startswith(begin))
        info[name] = {"file_name": f"{name}.json", **description}
        (folder / f"{name}.json").write_text(json.dumps(rows))
    (folder / "dataset_info.json").write_text(json.dumps(info))
    PIL.Image.new("RGB", (90, 40), "red").save(folder / "image.png")


class Inputs:
    """The files that published ones refer to, in folders for LLaMA-Factory, ROLL and all others."""

    def __init__(self, root, files):
        self.factory, self.roll, self.others = root / "factory", root / "roll", root / "others"
        for folder in (self.factory, self.roll, self.others):
            folder.mkdir(parents=True)
        settings = [each.settings() for each in files if each.program == "llamafactory"]
        for model in sorted({each["model_name_or_path"] for each in settings}):
            write_model(self.factory / model, model)
        sets = ",".join(each["dataset"] for each in settings if "dataset" in each)
        write_data_sets(self.factory, sorted({name.strip() for name in sets.split(",")}))
        for name in {each["dataset_dir"] for each in settings if "dataset_dir" in each}:
            (self.factory / name).parent.mkdir(parents=True, exist_ok=True)
            (self.factory / name).symlink_to(self.factory / "data")
        for name, text in {name: text for each in files for name, text in each.content.get("files", {}).items()}.items():
            (self.factory / name).parent.mkdir(parents=True, exist_ok=True)
            (self.factory / name).write_text(text)
        self.write_roll([each.settings() for each in files if each.program == "roll"])
        self.write_others()

    def write_roll(self, settings):
        for model in sorted({each.get("pretrain", "qwen2") for each in settings}):
            write_model(self.roll / model, "Qwen2" if model == "qwen2" else model)
        (self.roll / "data").mkdir()
        (self.roll / "data" / "comparison_gpt4_data_zh.json").write_text(json.dumps(PAIRS))
        write_rows(self.roll / "chats.jsonl", CHATS)

    def write_others(self):
        folder = self.others
        write_tokens(folder / "tokens")
        for name in ("data", "your_own_data_path"):
            for ending in (".bin", ".idx"):
                (folder / (name + ending)).symlink_to(folder / ("tokens" + ending))
        for name in ("qwen2", "Qwen/Qwen2.5-0.5B"):
            write_model(folder / name, "Qwen2")
        for name, (family, shape) in CONFIGS.items():
            config = transformers.AutoConfig.for_model(family, **SHAPE | shape)
            (folder / f"{name}.json").write_text(config.to_json_string(use_diff=False))
        for name, rows in (("texts", TEXTS), ("chats", CHATS), ("pairs", PAIRS)):
            write_rows(folder / f"{name}.jsonl", rows)

    def enter(self, published, folder):
        """Makes the inputs of |published| appear in |folder|."""
        folders = {"llamafactory": self.factory, "roll": self.roll}
        for entry in folders.get(published.program, self.others).iterdir():
            (folder / entry.name).symlink_to(entry)


# ----------------------------------------------------------------------------------------------------------------- runs


def run(program, words, folder):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CONCORD_LOG": "warn", "CONCORD_PYTHON": sys.executable,
                                "CONCORD_CACHE": str(folder / "cache")}
    return preloaded.run([program, "train", *words], environment, cwd=folder)


def replaced(words, values):
    """|words| with the values of |values|, by name; a list is replaced as a whole, a value joined by = too."""
    result, skips = [], False
    for word in words:
        name, equals, _ = word[2:].partition("=")
        if word.startswith("--"):
            skips = name in values
            result += [f"--{name}", str(values[name])] if skips else [word]
        elif not skips:
            result.append(word)
    return result


def published_words(published, folder):
    """Arguments that pass the file as it is published, and what the file leaves to the command line."""
    if published.kind == "words":
        return [*published.content["words"], *added_words(published)]
    file = folder / f"published.{published.kind}"
    file.write_text(published.content[published.kind])
    option = "--deepspeed" if published.kind == "json" else "--config"
    return [option, file.name, *added_words(published)]


def added_words(published):
    if published.kind == "words":
        return [word for names, words in ADDED_TO_MEGATRON if not names & set(published.content["words"]) for word in words]
    beginnings = [begin for begin in ADDED if published.name.startswith(begin)]
    return ADDED[max(beginnings, key=len)] if beginnings else []


def cut_words(published, words):
    sizes = cut_layout(layout(published))
    ranks = ["--nproc", str(world(sizes))]
    if published.kind != "words":
        return words + OVERRIDES + ranks + [word for axis, size in sizes.items() for word in (f"--{AXES[axis][0]}", str(size))]
    cut = CUT | {AXES[axis][0].replace("_", "-"): size for axis, size in sizes.items()}
    if published.settings().get("moe_layer_freq") == "1":  # all layers have experts, whatever their number
        del cut["moe-layer-freq"]
    return replaced(words, cut) + ranks


# The name that is rejected, and why: in words, or by these ones.
FAMILY, CHOICES, STORED = "no model family here has it", "{} is not supported", "weights stored as {} are not supported"
REJECTED = [(re.compile(pattern), why) for pattern, why in (
    (r"(?:^|: )(\S+) (?:\(\S+\) )?is .*, which Concord does not support: (.*)", "{}"),
    (r"(?:^|: )(\S+) (?:\(\S+\) )?is (.*), but must be ", CHOICES),
    (r"(?:^|: )(\S+) is (.*), which no model family here has: ", FAMILY),
    (r"^Megatron's default of (\S+) is (.*), which no model family here has: ", FAMILY),
    (r"config\.json: (model_type) is (\S+);", CHOICES),
    (r'config\.json: (quantization_config) is .*"quant_method":("\w+")', STORED))]


def rejected_names(errors):
    """The names that |errors| are about, by reason. Throws if a line is about anything else."""
    names = {}
    for line in errors.splitlines():
        line = line.strip().removeprefix("concord: ")
        if not line or re.fullmatch(r"\d+ errors in the arguments:", line) or line.startswith("note: ") or "tokenizing " in line:
            continue
        match, why = next(((match, why) for pattern, why in REJECTED if (match := pattern.search(line))), (None, ""))
        if match is None:
            raise AssertionError(errors)
        names.setdefault(why.format(match[2]), set()).add(match[1])
    return names


def steps_of(folder):
    """Loss, gradient norm and learning rate of each step."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [tuple(line[name] for name in ("loss", "grad_norm", "learning_rate")) for line in lines if "loss" in line]


def settings_of(folder):
    """Lines of the settings that a run has written, except that of its folder."""
    lines = (folder / "training_args.yaml").read_text().splitlines()
    return [line for line in lines if not line.startswith("output_dir:")]


def row(published, names):
    """The row of the page for a file that is rejected for |names|, by reason; for none if it trains."""
    reasons = "; ".join(f"{', '.join(f'`{each}`' for each in sorted(of))}: {why}" for why, of in sorted(names.items()))
    return f"| {published.name.split('/', 1)[1]} | {reasons or 'trains'} |"


def result_of(program, published, folder):
    """Returns the row of the page for the file, and the output folder if the file trains."""
    words = published_words(published, folder)
    done = run(program, [*words, "--nproc", str(world(layout(published))), "--print_config"], folder)
    if done.returncode == 0:
        done = run(program, cut_words(published, words), folder)
    if done.returncode != 0:
        return row(published, rejected_names(done.stderr)), None
    [metrics] = folder.rglob("metrics.jsonl")
    return row(published, {}), metrics.parent


def compare_with_native(program, published, output, folder):
    ranks = str(world(cut_layout(layout(published))))
    done = run(program, [*NATIVE[published.name].split(), *OVERRIDES, "--nproc", ranks, "--output_dir", "native"], folder)
    assert done.returncode == 0, done.stderr
    if published.kind != "words":  # command lines are cut by CUT instead
        differences = set(settings_of(output)) ^ set(settings_of(folder / "native"))
        assert not differences, "settings differ: " + "; ".join(sorted(differences))
    native = steps_of(folder / "native")
    assert steps_of(output) == native, f"loss, gradient norm, learning rate {steps_of(output)}, with Concord's own settings {native}"
    found, wanted = ({path.relative_to(each): path.read_bytes() for path in each.rglob("*.safetensors")} for each in (output, folder / "native"))
    assert found and sorted(found) == sorted(wanted), f"files {sorted(map(str, found))}, native {sorted(map(str, wanted))}"
    for name, content in found.items():
        assert content == wanted[name], f"{name} differs"


def check(program, published, folder, expected):
    result, output = result_of(program, published, folder)
    assert expected is None or result in expected, f"{PAGE.name} does not have {result}"
    if output is None:
        return result, "rejected"
    losses = [loss for loss, _, _ in steps_of(output)]
    assert len(losses) == 2 and all(map(math.isfinite, losses)), f"losses {losses}"
    if published.name not in NATIVE:
        return result, f"losses {losses}"
    compare_with_native(program, published, output, folder)
    return result, f"losses {losses}, as with Concord's own settings"




def check_evaluations(program, published, folder):
    """eval_dataset evaluates on the same rows as eval_data with the set's file, val_size on a part of the data."""
    losses = {}
    for given in (["--eval_dataset", "identity"], ["--eval_data", "data/identity.json"], ["--val_size", "0.25"]):
        words = [*cut_words(published, published_words(published, folder)), "--eval_strategy", "steps", "--eval_steps", "2", *given]
        done = run(program, words, folder)
        assert done.returncode == 0, done.stderr
        [metrics] = folder.rglob("eval_metrics.jsonl")
        losses[given[0]] = [json.loads(line)["eval_loss"] for line in metrics.read_text().splitlines()]
    assert len(losses["--val_size"]) == 1 and losses["--eval_dataset"] == losses["--eval_data"], losses
    return f"evaluation losses {losses}"


def check_text_field(program, published, folder):
    """dataset_text_field reads texts under another name."""
    write_rows(folder / "bodies.jsonl", [{"body": row["text"]} for row in TEXTS])
    words = cut_words(published, published_words(published, folder))
    renamed = [*replaced(words, {"train_data": "bodies.jsonl"}), "--dataset_text_field", "body"]
    steps = []
    for given, output in ((words, "named"), (renamed, "renamed")):
        done = run(program, [*given, "--output_dir", output], folder)
        assert done.returncode == 0, done.stderr
        steps.append(steps_of(folder / output))
    assert steps[0] == steps[1], steps
    return f"losses {[loss for loss, _, _ in steps[1]]} under another field"


def check_weighted_paths(program, published, folder):
    """Weights and paths as words of their own, with a model that only the command line describes."""
    words = cut_words(published, published_words(published, folder))
    at = words.index("--data-path") + 1
    words[at:at + 1] = ["0.3", "data", "0.7", "your_own_data_path"]
    done = run(program, [*words, "--print_config"], folder)
    assert re.search(r"^train_data_blend: .*0\.3.*data.*0\.7.*your_own_data_path", done.stdout, re.M), done.stdout + done.stderr
    done = run(program, words, folder)
    assert done.returncode == 0, done.stderr
    return "a blend trains"


# Settings that the published files have in comments or documents only, by the file that they are added to.
FURTHER = {"LLaMA-Factory/examples/train_full/qwen3_full_sft.yaml": check_evaluations,
           "trl/examples/cli_configs/example_config.yaml": check_text_field,
           "Megatron-LM/examples/mixtral/train_mixtral_8x7b_distributed.sh": check_weighted_paths}

PAGE_BEGIN = """# Published settings

Files of settings that other projects publish, at a stated commit (`tests/published/settings`), and what `concord train`
does with them. A file that trains is accepted as it is, and trains 2 steps once its sizes are cut. Every other one has
settings of features that do not exist here; these and the reasons are listed. The test that runs them
([testing](testing.md#published-settings)) compares this page, and writes it again with `CONCORD_WRITE_DOCS=1`.
[Settings of other programs](foreign-settings.md) has all names.
"""


def page(rows):
    """The page of all files: |rows| by file."""
    trained = sum(text.endswith("| trains |") for text in rows.values())
    text = PAGE_BEGIN + f"\n{trained} of {len(rows)} files train.\n"
    for project in dict.fromkeys(published.name.split("/")[0] for published in rows):
        of = {published: text for published, text in rows.items() if published.name.startswith(project + "/")}
        commits = ", ".join(dict.fromkeys(published.content["commit"] for published in of))
        repository = next(iter(of)).content["repository"]
        text += f"\n## {project}\n\n`{repository}` at `{commits}`\n\n| file | result |\n|---|---|\n"
        text += "\n".join(of.values()) + "\n"
    return text


def main():
    program, *parts = sys.argv[1:]
    program = Path(program).resolve()
    transformers.utils.logging.disable_progress_bar()
    files = read_published(parts)
    writes = bool(os.environ.get("CONCORD_WRITE_DOCS"))
    expected = None if writes else PAGE.read_text().splitlines()
    failures, rows = 0, {}
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(2) as pool:
        root = Path(folder)
        inputs = Inputs(root / "inputs", files)

        def start(published):
            work = root / published.name.replace("/", "+")
            work.mkdir()
            inputs.enter(published, work)
            return check(program, published, work, expected)

        def start_further(published):
            work = root / FURTHER[published.name].__name__
            work.mkdir()
            inputs.enter(published, work)
            return None, FURTHER[published.name](program, published, work)

        further = [(each, pool.submit(start_further, each)) for each in files if each.name in FURTHER]
        for published, checked in further + [(each, pool.submit(start, each)) for each in files]:
            try:
                row_of_page, text = checked.result()
                rows |= {published: row_of_page} if row_of_page else {}
                print(f"{published.name}: {text}", flush=True)
            except AssertionError as error:
                failures += 1
                print(f"FAILED {published.name}: {error}", flush=True)
    if failures:
        sys.exit(f"{failures} of {len(files)} files failed")
    if writes:
        PAGE.write_text(page(rows))
    elif not parts and PAGE.read_text() != page(rows):
        sys.exit(f"{PAGE.name} is about other files than settings/: write it again as it says")


if __name__ == "__main__":
    main()
