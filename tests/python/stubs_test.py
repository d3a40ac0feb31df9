"""The types of the package: stubs_test.py. PYTHONPATH has the package. CONCORD_WRITE_DOCS=1 writes _settings.pyi again.

_settings.pyi has every setting of the command line. mypy --strict accepts the stubs, the examples and a
sample of correct code, and rejects a name and a value that are wrong. Exit code 77: no mypy, only the names were
compared.
"""

import ast
import os
import pathlib
import subprocess
import sys
import tempfile

import concord
from concord import _library

ROOT = pathlib.Path(__file__).resolve().parents[2]
STUBS = ROOT / "trainer/python/concord/_settings.pyi"
HEAD = '''"""The settings of `concord train` (`concord train --help`). Written by tests/python/stubs_test.py."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

_Path = str | os.PathLike[str]

'''
OTHERS = ("model", "train_data", "eval_data", "test_data", "tokenizer")  # train() itself has them, since they may be objects
TYPES = {"bool": "bool", "int": "int", "float": "float", "str": "_Path", "list": "Sequence[_Path | float] | _Path | float",
         "dict": "Mapping[str, Any]"}
SAMPLE = '''
import concord
import torch

class Stop(concord.Callback):
    def on_log(self, state: concord.TrainerState, control: concord.TrainerControl, logs: dict[str, float]) -> None:
        control.should_training_stop = logs["loss"] < 1

def metrics(samples: list[concord.PredictedSample]) -> dict[str, float]:
    return {"nll": -sum(sum(each.log_probs) for each in samples)}

def loss_of(logits: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return logits.logsumexp(-1) * (batch["labels"] >= 0)

class Net(torch.nn.Module):
    vocab_size = 10

concord.train(model=Net(), seq_length=8)

def run(rate: float) -> concord.Result:
    return concord.train(learning_rate=rate, compute_metrics=metrics, compute_loss=loss_of)

steps: int = concord.launch(run, [1e-4], nproc=2).global_step
texts: list[str | None] = [each["text"] for each in concord.generate("models/x", ["a"], max_new_tokens=3)]
result = concord.train(model="models/x", train_data=[{"text": "a"}], max_steps=3, learning_rate=1e-4, callbacks=[Stop()],
                       lr_scheduler_type="cosine", lr_scheduler_kwargs={"min_lr": 1e-5}, bf16=True, config=None)
loss: float = result.training_loss

class Mlp(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = concord.parallel.ColumnParallelLinear(8, 32)
        self.down = concord.parallel.RowParallelLinear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with concord.parallel_context().fork_rng():
            hidden = concord.parallel.dropout(torch.relu(self.up(x)), 0.1)
        output: torch.Tensor = self.down(hidden)
        return output

with concord.initialize(tensor_model_parallel_size=2, seed=7) as job:
    output = Mlp()(torch.ones(2, 8))
    job.group("tp").all_reduce(output, op="max")
    stream = concord.current_platform.Stream()
    concord.current_platform.Communicator(1, 0, concord.Communicator.unique_id()).all_reduce(output, stream=stream)
    stream.synchronize()
'''
WRONG = {"learning_rte=1e-4": "learning_rte", "max_steps='many'": "max_steps", "finetuning_type='loro'": "finetuning_type",
         "compute_metrics=max": "compute_metrics"}


def typed_dict(name, settings):
    lines = []
    for setting, kind, allowed, help in settings:
        choice = f"Literal[{', '.join(repr(each) for each in allowed)}]"
        form = {"choice": choice, "choices": f"Sequence[{choice}] | str"}.get(kind) or TYPES[kind]
        lines.append(f"    {setting}: {form} | None\n    {help!r}\n")
    return f"class {name}(TypedDict, total=False):\n" + "".join(lines)


def stubs():
    core = _library.core
    of_train = [each for each in core.settings() if each[0] not in OTHERS]
    of_job = [each for each in of_train if each[0] in core.job_settings()]
    return HEAD + typed_dict("Settings", of_train) + "\n" + typed_dict("JobSettings", of_job)


def members(name):
    """Returns the names in the stub of `concord`, or of a class in it, that begin with no underscore, and __version__."""
    body = ast.parse((STUBS.parent / "__init__.pyi").read_text()).body
    if name:
        [body] = [each.body for each in body if isinstance(each, ast.ClassDef) and each.name == name]
    names = [each.target.id if isinstance(each, ast.AnnAssign) else each.name for each in body
             if isinstance(each, (ast.AnnAssign, ast.ClassDef, ast.FunctionDef))]
    names += [alias.asname for each in body if isinstance(each, ast.ImportFrom) for alias in each.names if alias.asname]
    names += [target.id for each in body if isinstance(each, ast.Assign) for target in each.targets]
    return {each for each in names if not each.startswith("_") or each == "__version__"}


def check_names():
    assert members("") == set(concord.__all__), members("") ^ set(concord.__all__)
    for name in ("Callback", "Result", "Trainer", "TrainerControl", "TrainerState", "Platform", "Stream", "Event", "ProcessGroup",
                 "Work", "Communicator"):
        real = {each for each in dir(getattr(concord, name)) if not each.startswith("_")}
        real |= set(getattr(getattr(concord, name), "__dataclass_fields__", ()))
        assert members(name) == real, (name, members(name) ^ real)


def mypy(folder, *paths):
    """Returns the complaints of mypy about the files; empty if there are none. `folder` caches what it knows of torch."""
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir", folder, *paths], capture_output=True, text=True,
                          env={**os.environ, "MYPYPATH": f"{STUBS.parents[1]}:{ROOT / 'examples/python'}"})
    assert not done.stderr, done.stderr
    return "" if done.returncode == 0 else done.stdout


def check_types(folder):
    sample = folder / "sample.py"
    sample.write_text(SAMPLE)
    complaints = mypy(folder, sample, *(ROOT / "examples/python").glob("*.py"))
    assert not complaints, complaints
    for argument, name in WRONG.items():
        sample.write_text(f"import concord\nconcord.train({argument})\n")
        complaints = mypy(folder, sample)
        assert name in complaints, (argument, complaints)


def main():
    if os.environ.get("CONCORD_WRITE_DOCS"):
        STUBS.write_text(stubs())
    assert STUBS.read_text() == stubs(), f"{STUBS} is not of this program; write it with CONCORD_WRITE_DOCS=1"
    check_names()
    try:
        import mypy as installed  # noqa: F401
    except ImportError as missing:
        print(f"skipped: {missing}; the names of the settings are those of the program")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        check_types(pathlib.Path(folder))


if __name__ == "__main__":
    main()
