"""Converts records of a table to JSON lines, for Concord: Parquet, Arrow, a JSON list, compressed lines (gzip, zstd,
xz), and tar files of WebDataset.

usage: python3 -c SCRIPT FILE

Prints a line of JSON for each record, then {"end": COUNT}, or one line {"error": REASON} if the file cannot be read.
Parquet, Arrow and zstd need the module pyarrow. Memory holds a batch of records, but a whole JSON list.

In a tar file, consecutive files with the same name up to the first dot are a sample. Its .json file is the record if it
has messages, or if there is no .txt file, which else is the answer to the sample's images and videos. These are the
columns "images" and "videos", in the order of their names, unless the record has such a column: names in it of files of
the sample are replaced by the files.
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


MEDIA = {"images": ("jpg", "jpeg", "png", "webp", "bmp", "tif", "tiff", "gif", "ppm"),
         "videos": ("mp4", "m4v", "mov", "mkv", "webm", "avi", "mpg", "mpeg")}
LARGEST_MEMBER = 1 << 30  # bytes


def samples(path):
    """Yields (name, {ending: bytes}) of each sample of a tar file."""
    import os
    import tarfile
    name, files = None, {}
    with tarfile.open(path, "r|") as archive:  # reads forward only, and extracts nothing
        for member in archive:
            if member.isdir():
                continue
            if not member.isfile():
                raise ValueError(f"{member.name} is not a regular file")
            if member.size > LARGEST_MEMBER:
                raise ValueError(f"{member.name} has {member.size} bytes; the limit is {LARGEST_MEMBER}")
            folder, file = os.path.split(member.name)
            if file.startswith("."):
                continue
            key, _, ending = file.partition(".")
            own = os.path.join(folder, key)
            if name is not None and own != name:
                yield name, files
                files = {}
            name = own
            if ending in files:
                raise ValueError(f"sample {name} has two files .{ending}")
            files[ending] = archive.extractfile(member).read()
    if name is not None:
        yield name, files


def record_of(name, files):
    """The record of a sample, whose media are bytes."""
    import os
    if "json" not in files and "txt" not in files:
        raise ValueError(f"sample {name} has neither a .json nor a .txt file; it has .{', .'.join(files)}")
    record = json.loads(files["json"]) if "json" in files else {}
    if not isinstance(record, dict):
        raise ValueError(f"{name}.json is not a JSON object")
    is_caption = "txt" in files and not ("messages" in record or "conversations" in record)
    if is_caption:
        record = {"messages": [{"role": "assistant", "content": files["txt"].decode("utf-8").strip()}]}
    for column, endings in MEDIA.items():
        own = {ending: content for ending, content in sorted(files.items()) if ending.lower().rpartition(".")[2] in endings}
        if column in record and record[column] is not None:
            names = {f"{os.path.basename(name)}.{ending}": content for ending, content in own.items()} | own
            given = record[column] if isinstance(record[column], list) else [record[column]]
            record[column] = [names.get(each, each) if isinstance(each, str) else each for each in given]
        elif own:
            record[column] = list(own.values())
    if is_caption:
        placeholders = "<image>" * len(record.get("images", [])) + "<video>" * len(record.get("videos", []))
        record["messages"].insert(0, {"role": "user", "content": placeholders})
    for column in MEDIA:
        if column in record and record[column] is not None:
            record[column] = [{"bytes": each} if isinstance(each, bytes) else each for each in record[column]]
    return record


def records(path):
    if path.endswith(".tar"):
        for name, files in samples(path):
            yield record_of(name, files)
    elif path.endswith(".parquet") or path.endswith(".arrow"):
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
