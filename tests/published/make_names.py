#!/usr/bin/env python3
"""Writes names.json: the names of all settings that other training programs define, by program.

Call: python make_names.py REPOSITORIES tests/published/names.json, with REPOSITORIES as for make.py. The Python that
runs it has torch and transformers: Megatron's names are those of its parser, which imports most of Megatron. Names that
only its code sets, or that it rejects itself, are not in the file.
"""
import ast
import dataclasses
import importlib.machinery
import json
import pathlib
import subprocess
import sys
import tempfile
import typing
import unittest.mock

from make import COMMITS, git, read

LLAMA_FACTORY = "src/llamafactory/hparams/"
TRL = ["trl/trainer/base_config.py", "trl/trainer/sft_config.py", "trl/trainer/dpo_config.py",
       "trl/trainer/reward_config.py", "trl/trainer/model_config.py", "trl/scripts/utils.py"]
# Classes that are not read from a file of settings for training, and TRL's of nested ones.
OTHER_CLASSES = {"EvaluationArguments", "ModelArguments", "DatasetConfig"}
SET_BY_CODE = {"megatron_bridge_args"}
REJECTED_BY_MEGATRON = {"batch_size", "model_parallel_size", "warmup"}


def fields(text):
    """The annotated names of each class in |text|, with their types."""
    classes = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    return {node.name: {each.target.id: ast.unparse(each.annotation) for each in node.body
                        if isinstance(each, ast.AnnAssign) and not each.target.id.startswith("_")} for node in classes}


def names_of(repositories, repository, paths):
    names = set()
    for path in paths:
        for name, of_class in fields(read(repositories, repository, path)).items():
            names |= set() if name in OTHER_CLASSES else set(of_class) - SET_BY_CODE
    return names


def torchtitan(repositories):
    classes = fields(read(repositories, "pytorch/torchtitan", "torchtitan/config/job_config.py"))
    return {f"{section}.{name}" for section, kind in classes["JobConfig"].items() for name in classes.get(kind, {})}


class Stubs:
    """Modules of accelerators that Megatron imports and its parser does not need."""

    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] == "triton" else None

    def create_module(self, spec):
        module = unittest.mock.MagicMock()
        module.__path__, module.__spec__, module.__name__, module.__version__ = [], spec, spec.name, "0"
        return module

    def exec_module(self, module):
        pass


def megatron(repositories):
    import argparse
    import torch
    torch.compile = lambda function=None, **_: function or (lambda inner: inner)
    import torch._dynamo  # noqa: F401, before the stubs
    typing.override = lambda function: function  # in Python 3.11
    sys.meta_path.insert(0, Stubs())
    with tempfile.TemporaryDirectory() as folder:
        archive = git(repositories, "NVIDIA/Megatron-LM", "archive", COMMITS["NVIDIA/Megatron-LM"], "megatron")
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        sys.path.insert(0, folder)
        from megatron.training.arguments import add_megatron_arguments
        parser = argparse.ArgumentParser(allow_abbrev=False)
        add_megatron_arguments(parser)
    options = {option[2:].replace("-", "_") for action in parser._actions for option in action.option_strings
               if option.startswith("--")}
    return options - REJECTED_BY_MEGATRON


def main():
    import transformers
    repositories, out = map(pathlib.Path, sys.argv[1:])
    listing = git(repositories, "hiyouga/LLaMA-Factory", "ls-tree", "-r", "--name-only",
                  COMMITS["hiyouga/LLaMA-Factory"], LLAMA_FACTORY).decode().split()
    names = {
        "transformers": {field.name for field in dataclasses.fields(transformers.TrainingArguments)},
        "TRL": names_of(repositories, "huggingface/trl", TRL),
        "LLaMA-Factory": names_of(repositories, "hiyouga/LLaMA-Factory", [each for each in listing if each.endswith("_args.py")]),
        "torchtitan": torchtitan(repositories),
        "Megatron-LM": megatron(repositories),
    }
    text = ",\n".join(f' {json.dumps(program)}: [\n' + ",\n".join(f"  {json.dumps(each)}" for each in sorted(of)) + "\n ]"
                      for program, of in names.items())
    out.write_text("{\n" + text + "\n}\n")


if __name__ == "__main__":
    main()
