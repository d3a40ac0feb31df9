"""Converts records of a table to JSON lines, for Concord: Parquet, Arrow, a JSON list, and compressed lines (gzip,
zstd, xz).

usage: python3 -c SCRIPT FILE

Prints a line of JSON for each record, then {"end": COUNT}, or one line {"error": REASON} if the file cannot be read.
Parquet, Arrow and zstd need the module pyarrow. Memory holds a batch of records, but a whole JSON list.
"""
import sys

sys.path[:] = [folder for folder in sys.path if folder]  # the working folder holds data, not modules

import base64
import json


def pyarrow():
    try:
        import pyarrow as module
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError(f"{sys.executable} has no module pyarrow ({error}); install it (pip install pyarrow), set "
                         "CONCORD_PYTHON to a Python that has it, or convert the file to .jsonl elsewhere")
    return module


def arrow_batches(path):
    module = pyarrow()
    with module.memory_map(path) as file:
        try:
            reader = module.ipc.open_file(file)
            batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
        except module.ArrowInvalid:  # as the cache of HF's datasets
            file.seek(0)
            batches = module.ipc.open_stream(file)
        yield from batches


def parquet_batches(path):
    module = pyarrow()
    yield from module.parquet.ParquetFile(path).iter_batches()


def compressed(path):
    if path.endswith(".gz"):
        import gzip
        return gzip.open(path, "rb")
    if path.endswith(".xz"):
        import lzma
        return lzma.open(path, "rb")
    module = pyarrow()
    return module.input_stream(path, compression="zstd")


def raw_lines(path):
    """Yields lines without parsing them."""
    import io
    with compressed(path) as file:
        for line in io.TextIOWrapper(io.BufferedReader(file) if not isinstance(file, io.IOBase) else file, encoding="utf-8", newline="\n"):
            if line.strip():
                yield line.rstrip("\r\n")


def records(path):
    if path.endswith(".parquet") or path.endswith(".arrow"):
        for batch in (parquet_batches if path.endswith(".parquet") else arrow_batches)(path):
            yield from batch.to_pylist()
    else:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
        if not isinstance(value, list):
            raise ValueError("the file is not a JSON list of records; "
                             "use the ending .jsonl for a file with one record per line")
        yield from value


def text_of(value):
    """Images in a table are bytes."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def main(path):
    count = 0
    try:
        lines = raw_lines(path) if path.endswith((".gz", ".zst", ".xz")) else (
            json.dumps(record, ensure_ascii=False, default=text_of) for record in records(path))
        for line in lines:
            print(line, flush=False)
            count += 1
        print(json.dumps({"end": count}))
    except BrokenPipeError:
        raise
    except Exception as error:
        print(json.dumps({"error": f"{error}"}))
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except BrokenPipeError:  # the parent process is gone
        import os
        os._exit(1)
