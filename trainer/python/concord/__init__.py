"""Concord trains language models on NVIDIA and Ascend devices and on plain CPUs. See docs/python.md.

    import concord
    result = concord.train(model="models/Qwen2.5-0.5B", train_data="notes.txt", max_steps=100, output_dir="out/notes")

Importing this package is quick: torch is imported when one of its functions is first used.
"""

import importlib
import importlib.metadata

# Name -> the module that defines it.
_MODULES = {"train": "_train", "load": "_load", "generate": "_generate", "launch": "_launch", "Result": "_train",
            "Callback": "_train", "Generated": "_generate", "ConfigError": "_library", "Error": "_library",
            "PredictedSample": "_library", "Trainer": "_library", "TrainerState": "_library", "TrainerControl": "_library",
            "initialize": "_job", "finalize": "_job", "is_initialized": "_job", "parallel_context": "_job",
            "ParallelContext": "_job", "ProcessGroup": "_library", "Work": "_library", "current_platform": "_library",
            "Platform": "_library", "Stream": "_library", "Event": "_library", "Communicator": "_library"}
_SUBMODULES = ("parallel",)
__all__ = [*_MODULES, *_SUBMODULES, "__version__"]


def __getattr__(name):
    if name == "__version__":
        try:
            value = importlib.metadata.version("concord")
        except importlib.metadata.PackageNotFoundError:  # the build folder of a checkout
            value = importlib.import_module("concord._library").version
    elif name in _SUBMODULES:
        value = importlib.import_module(f"concord.{name}")
    elif name in _MODULES:
        value = getattr(importlib.import_module(f"concord.{_MODULES[name]}"), name)
    else:
        raise AttributeError(f"module 'concord' has no attribute '{name}'; it has {', '.join(sorted(__all__))}")
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *__all__})
