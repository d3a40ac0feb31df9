"""Records of a table as lines of JSON, for Concord: Parquet, Arrow, a JSON list, and gzip of text.

usage: python3 -c SCRIPT FILE

A line of JSON for each record, then {"end": COUNT} without anything after it. A file that cannot be read is one line
{"error": REASON} instead. Parquet and Arrow need the module pyarrow.
"""
import sys

sys.path[:] = [folder for folder in sys.path if folder]  # the working folder holds data, not modules

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


def records(path):
    if path.endswith(".parquet") or path.endswith(".arrow"):
        for batch in (parquet_batches if path.endswith(".parquet") else arrow_batches)(path):
            yield from batch.to_pylist()
    elif path.endswith(".gz"):
        import gzip
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                if line.strip():
                    yield json.loads(line)
    else:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
        if not isinstance(value, list):
            raise ValueError("the file is no JSON list of records; a file with a record on each line is called .jsonl")
        yield from value


def main(path):
    count = 0
    try:
        for record in records(path):
            print(json.dumps(record, ensure_ascii=False, default=str), flush=False)
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
