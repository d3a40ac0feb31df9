"""`concord.generate`: texts of a model, from the program `concord generate`."""

import collections.abc
import json
import pathlib
import tempfile
import typing

from concord import _library
from concord._train import words_of, write_rows


class Generated(typing.TypedDict):
    """The continuation of a prompt."""

    prompt: str
    prompt_ids: list
    ids: list
    text: str  # None without a tokenizer
    finish_reason: str


def generate(model, prompts, **options):
    """Continues `prompts` with the model in the folder `model`, and returns a list of dicts, one per prompt.

    A prompt is a text or a dict: {"prompt": ...}, {"messages": [...]} or {"input_ids": [...]}. A result has "prompt",
    "prompt_ids", "ids", "text" (None without a tokenizer) and "finish_reason" ("stop" or "length"). `options` are those of
    `concord generate --help`: chat=True, max_new_tokens=20, temperature=0.7, tokenizer="byte", nproc=2 and so on. Raises
    ConfigError with its messages.
    """
    is_one = isinstance(prompts, (str, collections.abc.Mapping))
    rows = ({"prompt": each} if isinstance(each, str) else each for each in ([prompts] if is_one else prompts))
    with tempfile.TemporaryDirectory(prefix="concord-") as folder:
        path = write_rows(rows, "prompts", pathlib.Path(folder))
        printed = _library.run_program("generate", *words_of({"model": model, **options, "prompts": path, "json": True}))
    return json.loads(printed)["generated"]
