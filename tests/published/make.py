#!/usr/bin/env python3
"""Extracts the settings of training configurations that other projects publish, one JSON file per published file.

Call: python make.py REPOSITORIES OUT. REPOSITORIES/OWNER/NAME is a clone (or a bare one) that has the commit in COMMITS.
The Python that runs it has transformers, whose TrainingArguments are extracted as well and which TRL's code imports.

A file has names and values only: no code, no comments. A shell script is run in an empty folder in which torchrun,
python and so on record their arguments; `words` are those after the training script's name. `yaml` and `toml` are the
text of the file without comments. `files` are the ones that the settings refer to.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import tomllib

import yaml

COMMITS = {
    "NVIDIA/Megatron-LM": "d98e8a64ddf34856e74b24714e3bedb2f5a39553",
    "alibaba/ROLL": "8eb27cc2dc34c4d1310b169d9b86d339004d811a",
    "hiyouga/LLaMA-Factory": "ff6d4d12eeb035d6ce06805a5733dd7b29f2ac30",
    "huggingface/trl": "f2cd57710ae345ea6428ae95363267fcf38a3dc8",
    "pytorch/torchtitan": "238fa9953e4aec2a62582121564273d7cbb1e9f1",  # the last one that has TOML files
}

# Megatron's scripts: path, suffix of the written file, arguments of the script.
SCRIPTS = [
    ("examples/gpt3/train_gpt3_175b_distributed.sh", "",
     ["checkpoints", "tensorboard", "vocab.json", "merges.txt", "data"]),
    ("examples/gptoss/02_train.sh", "", ["--checkpoint-path", "checkpoints"]),
    ("examples/gptoss/02_train.sh", "-data",
     ["--checkpoint-path", "checkpoints", "--tokenizer", "tokenizer", "--data", "data"]),
    ("examples/llama/train_llama3_8b_h100_fp8.sh", "", []),
    ("examples/llama/train_llama3_8b_h100_fp8.sh", "-data", ["checkpoints", "tensorboard", "tokenizer", "data"]),
    ("examples/megatron_fsdp/sbatch_mfsdp_deepseek_v3.sh", "", []),
    ("examples/megatron_fsdp/train_llama3_8b_fsdp_h100_fp8.sh", "", ["checkpoints", "data", "tokenizer"]),
    ("examples/mixtral/train_mixtral_8x7b_distributed.sh", "", ["checkpoints", "tokenizer", "data"]),
]
# Scripts that only define arguments, by the variables that hold them.
MODELOPT = "examples/post_training/modelopt/conf/"
RL = "examples/rl/model_configs/"
DEFINITIONS = {
    "$MODEL_ARGS": [MODELOPT + name + ".sh" for name in (
        "Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen3-0.6B", "Qwen/Qwen3-235B-A22B",
        "Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-8B", "deepseek-ai/DeepSeek-R1", "deepseek-ai/DeepSeek-V2-Lite",
        "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.2-1B-Instruct", "moonshotai/Kimi-K2-Instruct",
        "openai/gpt-oss-120b", "openai/gpt-oss-20b")],
    "$COMMON_OPTIONS $ENV_DEPENDENT $MODEL_OPTIONS": [RL + name + ".sh" for name in (
        "llama3p1_8b_instruct", "qwen3_30b_a3b_moe", "qwen3_32b", "qwen3_4b", "qwen3_8b", "qwen_2p5_32b",
        "qwen_2p5_3b", "qwen_2p5_distill_7b", "qwen_2p5_math_7b")],
}
# LLaMA-Factory's folders of YAML files that train a model.
LLAMA_FACTORY = ["ascend", "extras", "megatron", "megatron_bridge", "train_full", "train_lora", "train_qlora"]
NOT_TRAINING = {"examples/extras/multi_tokens/tokens_cfg.yaml"}  # tokens to add to a vocabulary
TORCHTITAN = [
    "deepseek_v3/train_configs/debug_model", "deepseek_v3/train_configs/deepseek_v3_16b",
    "deepseek_v3/train_configs/deepseek_v3_671b", "gpt_oss/train_configs/debug_model",
    "llama3/train_configs/debug_model", "llama3/train_configs/llama3_405b", "llama3/train_configs/llama3_70b",
    "llama3/train_configs/llama3_8b", "qwen3/train_configs/qwen3_0.6b", "qwen3/train_configs/qwen3_1.7b",
    "qwen3/train_configs/qwen3_32b", "qwen3/train_configs/qwen3_moe_debug"]
ROLL_DPO = ["examples/dpo_examples/qwen2.5-3B_dpo_megatron.yaml", "examples/dpo_examples/qwen3-30BA3B-dpo_megatron_80GB.yaml"]
ROLL_RLVR = "examples/qwen2.5-7B-rlvr_megatron/rlvr_config.yaml"
TRL_CONFIGS = {"sft": "SFTConfig", "dpo": "DPOConfig", "reward": "RewardConfig"}

# Records the arguments of one call, each with a trailing NUL, and a further NUL.
RECORD = '#!/bin/bash\nprintf "%s\\0" "$@" "" >>"$RECORD"\n'
STUBS = {
    "python": RECORD,
    "python3": RECORD,
    "torchrun": RECORD,
    "git": "#!/bin/bash\n",
    "sbatch": "#!/bin/bash\nexec bash\n",
    "srun": '#!/bin/bash\nwhile [[ $1 == -* ]]; do shift; done\nexec "$@"\n',
    "uv": '#!/bin/bash\nshift\nexec "$@"\n',
}
TOOLS = ["basename", "bash", "cat", "dirname", "mkdir", "tee"]


def git(repositories, repository, *arguments):
    return subprocess.run(["git", "-C", str(repositories / repository), *arguments], check=True, capture_output=True).stdout


def read(repositories, repository, path):
    return git(repositories, repository, "show", f"{COMMITS[repository]}:{path}").decode()


def without_comments(text):
    """The lines of YAML or TOML |text| without comments and empty lines. No published value has a # in quotes."""
    lines = []
    for line in text.splitlines():
        kept = line if not line.lstrip().startswith("#") else ""
        kept = kept.split(" #")[0].rstrip()
        if kept:
            lines.append(kept)
    return "\n".join(lines) + "\n"


def yaml_settings(text):
    settings = without_comments(text)
    assert yaml.safe_load(settings) == yaml.safe_load(text)
    return settings


def toml_settings(text):
    settings = without_comments(text)
    assert tomllib.loads(settings) == tomllib.loads(text)
    return settings


class Sandbox:
    """The scripts of a repository, an empty folder to run them in, and a PATH of stubs."""

    def __init__(self, repositories, repository, folders):
        self.folder = tempfile.TemporaryDirectory()
        root = pathlib.Path(self.folder.name)
        self.scripts, self.stubs, self.record = root / "scripts", root / "stubs", root / "record"
        self.scripts.mkdir()
        self.stubs.mkdir()
        archive = git(repositories, repository, "archive", COMMITS[repository], *folders)
        subprocess.run(["tar", "-x", "-C", str(self.scripts)], input=archive, check=True)
        for name, text in STUBS.items():
            (self.stubs / name).write_text(text)
            (self.stubs / name).chmod(0o755)
        for name in TOOLS:
            (self.stubs / name).symlink_to(shutil.which(name))

    def run(self, *command):
        """Runs |command| in bash and returns the recorded calls and the standard output."""
        self.record.write_bytes(b"")
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "pretrain_gpt.py").touch()
            (pathlib.Path(folder) / "checkpoints").mkdir()
            environment = {"PATH": str(self.stubs), "RECORD": str(self.record), "ENV_CONFIG": "environment.yaml",
                           "CHECKPOINT": "checkpoint"}
            output = subprocess.run([str(self.stubs / "bash"), *command], cwd=folder, env=environment, check=True,
                                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
            calls = self.record.read_text().replace(folder + "/", "").split("\0\0")[:-1]
        return [call.split("\0") for call in calls], output.decode()


def megatron(repositories, write):
    sandbox = Sandbox(repositories, "NVIDIA/Megatron-LM", ["examples"])
    for path, suffix, arguments in SCRIPTS:
        calls, _ = sandbox.run(str(sandbox.scripts / path), *arguments)
        assert len(calls) == 1, f"{path} starts {len(calls)} programs"
        script = next(i for i, word in enumerate(calls[0]) if word.endswith("pretrain_gpt.py"))
        write("NVIDIA/Megatron-LM", path, {"program": "megatron", "words": calls[0][script + 1:]}, suffix)
    for variables, paths in DEFINITIONS.items():
        for path in paths:
            _, output = sandbox.run("-c", f'. "$0" >&2; printf "%s\\n" {variables}', str(sandbox.scripts / path))
            write("NVIDIA/Megatron-LM", path, {"program": "megatron", "words": output.splitlines()})


def llama_factory(repositories, write):
    repository = "hiyouga/LLaMA-Factory"
    folders = [f"examples/{folder}" for folder in LLAMA_FACTORY]
    listing = git(repositories, repository, "ls-tree", "-r", "--name-only", COMMITS[repository], *folders).decode()
    for path in listing.split():
        if not path.endswith(".yaml") or path in NOT_TRAINING:
            continue
        text = read(repositories, repository, path)
        content = {"program": "llamafactory", "yaml": yaml_settings(text)}
        named = yaml.safe_load(text).get("deepspeed")
        if named:
            content["files"] = {named: read(repositories, repository, named)}
        write(repository, path, content)
    listing = git(repositories, repository, "ls-tree", "-r", "--name-only", COMMITS[repository],
                  "examples/accelerate/", "examples/deepspeed/").decode()
    for path in listing.split():
        text = read(repositories, repository, path)
        if path.endswith(".json"):
            write(repository, path, {"program": "deepspeed", "json": text})
        else:
            write(repository, path, {"program": "accelerate", "yaml": yaml_settings(text)})


# The settings that a program with TRL's or HF's classes prints, on a machine whose device has bf16.
PRINT_DEFAULTS = """
import json, sys, warnings
warnings.simplefilter("ignore")
import transformers.training_args
transformers.training_args.is_torch_bf16_gpu_available = lambda: True
module, name = sys.argv[1:]
print(json.dumps(getattr(__import__(module), name)(output_dir="out").to_dict()))
"""


def defaults(module, name, folder):
    environment = dict(os.environ, PYTHONPATH=folder, PYTHONDONTWRITEBYTECODE="1")
    output = subprocess.run([sys.executable, "-c", PRINT_DEFAULTS, module, name], check=True, env=environment,
                            stdout=subprocess.PIPE).stdout
    return yaml.safe_dump(json.loads(output.splitlines()[-1]), sort_keys=False)


def hugging_face(repositories, write):
    import transformers
    write("huggingface/transformers", "src/transformers/training_args.py",
          {"program": "transformers", "yaml": defaults("transformers", "TrainingArguments", "")},
          commit="v" + transformers.__version__)
    with tempfile.TemporaryDirectory() as folder:
        archive = git(repositories, "huggingface/trl", "archive", COMMITS["huggingface/trl"], "trl")
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        for stage, name in TRL_CONFIGS.items():
            write("huggingface/trl", f"trl/trainer/{stage}_config.py", {"program": "trl", "yaml": defaults("trl", name, folder)})
    path = "examples/cli_configs/example_config.yaml"
    write("huggingface/trl", path, {"program": "trl", "yaml": yaml_settings(read(repositories, "huggingface/trl", path))})


def torchtitan(repositories, write):
    for name in TORCHTITAN:
        path = f"torchtitan/models/{name}.toml"
        text = toml_settings(read(repositories, "pytorch/torchtitan", path))
        write("pytorch/torchtitan", path, {"program": "torchtitan", "toml": text})


def roll(repositories, write):
    for path in ROLL_DPO:
        write("alibaba/ROLL", path, {"program": "roll", "yaml": yaml_settings(read(repositories, "alibaba/ROLL", path))})
    actor = yaml.safe_load(read(repositories, "alibaba/ROLL", ROLL_RLVR))["actor_train"]
    settings = {"actor_train": {name: actor[name] for name in ("training_args", "strategy_args")}}
    write("alibaba/ROLL", ROLL_RLVR, {"program": "roll", "yaml": yaml.safe_dump(settings, sort_keys=False)})


def main():
    repositories, out = map(pathlib.Path, sys.argv[1:])

    def write(repository, path, content, suffix="", commit=None):
        target = out / repository.split("/")[1] / f"{path}{suffix}.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        head = {"repository": repository, "commit": commit or COMMITS[repository], "path": path}
        target.write_text(json.dumps({**head, **content}, indent=1, ensure_ascii=False) + "\n")

    for part in (megatron, llama_factory, hugging_face, torchtitan, roll):
        part(repositories, write)


if __name__ == "__main__":
    main()
