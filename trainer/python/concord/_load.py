"""`concord.load`: tensors of models, checkpoints and dumps, and metrics."""

import json
import math
import os
import pathlib
import struct

import torch

from concord._library import ConfigError

DTYPES = {"BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32, "I64": torch.int64,
          "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64,
          "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}
FOLDER_FILES = ("model.safetensors", "adapter_model.safetensors")
INDEX = "model.safetensors.index.json"


def load(path):
    """Returns a dict of tensors, by name.

    `path` is a model or checkpoint folder (its weights), a .safetensors file (a dump of `concord probe`, for instance), or
    a .jsonl file of metrics: then the tensors are columns in float64, NaN where a line has no such number. Weights are
    mapped from their files, not read, so tensors of a large model cost nothing until they are used; writing to one does
    not change the file.
    """
    path = pathlib.Path(path)
    if path.suffix == ".safetensors":
        return read_safetensors(path)
    if path.suffix == ".jsonl":
        return read_columns(path)
    if (path / INDEX).is_file():
        names = json.loads((path / INDEX).read_text())["weight_map"].values()
        return {name: tensor for each in sorted(set(names)) for name, tensor in read_safetensors(path / each).items()}
    for name in FOLDER_FILES:
        if (path / name).is_file():
            return read_safetensors(path / name)
    raise ConfigError(f"cannot load {os.fspath(path)!r}; must be a .safetensors or .jsonl file, or a folder with one of "
                      f"{', '.join((INDEX, *FOLDER_FILES))}")


def read_safetensors(path):
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            start = 8 + struct.unpack("<Q", file.read(8))[0]
            if start > size:
                raise ValueError(f"its header of {start} bytes is longer than the file")
            header = json.loads(file.read(start - 8))
        data = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
        return {name: tensor_of(entry, data[start:]) for name, entry in header.items() if name != "__metadata__"}
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, struct.error) as error:
        raise ConfigError(f"cannot read {os.fspath(path)!r} as safetensors: {error}") from error


def tensor_of(entry, data):
    begin, end = entry["data_offsets"]
    dtype, shape = DTYPES[entry["dtype"]], entry["shape"]
    if not 0 <= begin <= end <= len(data) or end - begin != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"data_offsets {begin}, {end} do not fit {entry['dtype']} {shape} in {len(data)} bytes")
    raw = data[begin:end]
    if raw.storage_offset() % dtype.itemsize or raw.data_ptr() % dtype.itemsize:  # a view has to be aligned in both
        raw = raw.clone()
    return raw.view(dtype).view(shape)


def read_columns(path):
    try:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {os.fspath(path)!r} as lines of JSON: {error}") from error
    names = dict.fromkeys(name for row in rows for name, value in row.items() if isinstance(value, (int, float)))
    return {name: torch.tensor([number(row.get(name)) for row in rows], dtype=torch.float64) for name in names}


def number(value):
    return value if isinstance(value, (int, float)) else math.nan
