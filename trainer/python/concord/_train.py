"""`concord.train`: a training run in this process, with the settings of the command line."""

import collections.abc
import dataclasses
import html
import itertools
import json
import os
import pathlib
import signal
import sys
import tempfile

from concord import _library

DATA = ("train_data", "eval_data", "test_data")


class Callback:
    """Base class of callbacks: override any of its methods. An object with some of these methods is a callback too.

    Every rank calls its own. Requests are made by setting `should_training_stop`, `should_log`, `should_evaluate` or
    `should_save` of `control` to true, and apply to all ranks after the step. An exception ends the run and is raised by
    `train`.
    """

    def on_train_begin(self, state, control):
        pass

    def on_train_end(self, state):
        pass

    def on_epoch_begin(self, state, control):
        pass

    def on_epoch_end(self, state, control):
        pass

    def on_step_begin(self, state, control):
        pass

    def on_step_end(self, state, control):
        pass

    def on_log(self, state, control, logs):
        """`logs`: loss, learning_rate, grad_norm, ..., the names of metrics.jsonl."""

    def on_evaluate(self, state, control, metrics):
        """`metrics`: eval_loss and others, the names of eval_metrics.jsonl."""

    def on_save(self, state, control, folder):
        """`folder` is a checkpoint that is complete."""


@dataclasses.dataclass(frozen=True)
class Result:
    """What a run has reached. `metrics` has train_runtime and others, `reason` why the run has ended."""

    global_step: int
    training_loss: float
    metrics: dict
    test_metrics: dict
    reason: str
    output_dir: pathlib.Path

    @property
    def log(self):
        """The lines of metrics.jsonl: one dict per logged step."""
        return lines_of(self.output_dir / "metrics.jsonl")

    @property
    def eval_log(self):
        """The lines of eval_metrics.jsonl: one dict per evaluation."""
        return lines_of(self.output_dir / "eval_metrics.jsonl")

    @property
    def model(self):
        """The folder of the trained model, which transformers' from_pretrained reads."""
        return self.output_dir / "model"

    def _repr_html_(self):
        """In a notebook: the numbers, and the loss curve as `concord report --svg` draws it."""
        numbers = {"global_step": self.global_step, "training_loss": f"{self.training_loss:.6g}", "reason": self.reason,
                   "output_dir": self.output_dir, **self.test_metrics}
        rows = "".join(f"<tr><td>{html.escape(name)}</td><td>{html.escape(str(value))}</td></tr>"
                       for name, value in numbers.items())
        curve = _library.run_program("report", self.output_dir, "--svg", "-") if any("loss" in row for row in self.log) else ""
        return f"<table>{rows}</table>{curve}"


def train(*, callbacks=(), loop=None, compute_metrics=None, compute_loss=None, parameter_groups=None, **settings):
    """Trains as `concord train --name value ...` does, and returns a Result.

    Names, defaults, checks and messages are those of the command line (`concord train --help`), for which underscores
    and dashes are the same. `config` names a YAML or TOML file; settings given here take precedence. None means that a
    setting is not given. `train_data`, `eval_data` and `test_data` are a path, or an iterable of dicts: rows of a .jsonl
    file, such as {"text": ...}, {"messages": [...]} or {"input_ids": [...], "labels": [...]}. `tokenizer` may be one of
    transformers, with its chat template. Without a model and data it trains a small model on generated text.

    `loop` is a function of a concord.Trainer, which it uses until it returns: `while logs := trainer.train_step(): ...`.
    Afterwards the run ends as it does without it. Every rank calls the same methods in the same order.

    `compute_metrics` is a function of the list of predicted samples of an evaluation, each with `labels`, `predictions` and
    `log_probs` of its tokens; it returns a dict of numbers, which are logged as eval_NAME. `compute_loss` is a function of
    the logits [B, S, V] of a micro-batch and a dict of its `input_ids` and `labels` [B, S], where a label is the next token
    or -100; it returns a loss per token [B, S], which autograd differentiates and the trainer averages over the labels.

    `parameter_groups` is a function of the name and shape of a parameter; it returns None, or a dict of multipliers of its
    learning rate and weight decay: {"lr": 0.1, "weight_decay": 0}.

    Each process is one rank: start several with `concord launch --nproc N -- python SCRIPT` or torchrun. Raises
    ConfigError for invalid settings, Error for a failed device or rank, and what a callback raises. SIGINT, SIGTERM and
    SIGHUP stop the run after the current step; it saves, and KeyboardInterrupt or SystemExit is raised.
    """
    sys.stdout.flush()  # the run prints to the same file
    functions = {"loop": loop, "compute_metrics": compute_metrics, "compute_loss": compute_loss,
                 "parameter_groups": parameter_groups, "network": None}
    with tempfile.TemporaryDirectory(prefix="concord-") as folder:
        if is_module(settings.get("model")):
            from concord._module import Network
            functions["network"] = Network(settings.pop("model"), pathlib.Path(folder))
        for name in DATA:
            if is_rows(settings.get(name)):
                settings[name] = write_rows(settings[name], name, pathlib.Path(folder), settings.get("max_samples"))
        if hasattr(settings.get("tokenizer"), "save_pretrained"):  # one of transformers
            settings["tokenizer"].save_pretrained(pathlib.Path(folder) / "tokenizer")
            settings["tokenizer"] = pathlib.Path(folder) / "tokenizer"
        done = _library.core.train(words_of(settings), [*callbacks, *progress()], functions)
    stopped_by = done.pop("stop_signal")
    if stopped_by == signal.SIGINT:
        raise KeyboardInterrupt(done["reason"])
    if stopped_by:
        raise SystemExit(128 + stopped_by)
    return Result(**{**done, "output_dir": pathlib.Path(done["output_dir"])})


def progress():
    """Returns the callbacks that show a run in a notebook; elsewhere the run prints its progress itself."""
    from concord import _notebook

    return [_notebook.NotebookProgress()] if _notebook.in_notebook() else []


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def words_of(settings):
    """Returns the command line that gives `settings`."""
    return [f"--{name}={text_of(value, name)}" for name, value in settings.items() if value is not None]


def text_of(value, name):
    """Returns `value` as the command line takes it: lists and dicts as JSON, which YAML contains."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float, os.PathLike)):
        return os.fspath(value) if isinstance(value, os.PathLike) else str(value)
    if isinstance(value, (collections.abc.Mapping, list, tuple, set, frozenset)):
        return json.dumps(plain(value))
    raise _library.ConfigError(f"{name} is {value!r}, of type {type(value).__name__}; must be a string, a number, a bool, a "
                               "path, or a list or dict of these")


def is_module(value):
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def is_rows(value):
    """Whether `value` is data in memory. A list of paths and weights, which the command line takes too, is not."""
    if value is None or isinstance(value, (str, bytes, os.PathLike)):
        return False
    if isinstance(value, (list, tuple)):
        return any(not isinstance(each, (str, int, float, os.PathLike)) for each in value)
    return hasattr(value, "__iter__") or hasattr(value, "__getitem__")


def rows_of(data):
    """Iterates over an iterable, or over a torch Dataset with a length, whose indices need not end with an IndexError."""
    is_indexed = hasattr(data, "__getitem__") and hasattr(data, "__len__") and not hasattr(data, "__iter__")
    return (data[index] for index in range(len(data))) if is_indexed else iter(data)


def write_rows(rows, name, folder, most=None):
    """Writes the rows to a .jsonl, which the run reads like any other: so it is checked, cut and resumed like one.

    At most `most` rows are read (max_samples), since data need not end."""
    most = most if isinstance(most, int) and most > 0 else None
    path = folder / f"{name}.jsonl"
    with open(path, "w", encoding="utf-8") as file:
        for index, row in enumerate(itertools.islice(rows_of(rows), most)):
            if not isinstance(row, collections.abc.Mapping):
                raise _library.ConfigError(f"row {index} of {name} is {row!r}; must be a dict such as {{'text': ...}} or "
                                           "{'input_ids': [...], 'labels': [...]}")
            file.write(json.dumps(plain(row), ensure_ascii=False) + "\n")
    return path


def plain(value):
    """Returns `value` for JSON: tensors and arrays become lists, paths become strings."""
    if isinstance(value, collections.abc.Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(each) for each in value]
    if hasattr(value, "tolist"):  # a tensor or an array
        return value.tolist()
    return os.fspath(value) if isinstance(value, os.PathLike) else value
