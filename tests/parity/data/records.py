"""Parquet and Arrow files through `concord data convert`, compared with pyarrow.

records.py PROGRAM

Strings, lists of structs, nulls, several row groups and batches, and both kinds of Arrow files must give the original
rows. Exit code 77: pyarrow is missing, nothing was compared.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import pyarrow
    import pyarrow.ipc
    import pyarrow.parquet
except ImportError as missing:
    print(f"skipped: {missing}; install pyarrow for this Python")
    sys.exit(77)

ROWS = [{"messages": [{"role": "user", "content": f"Grüße {i}\n"}, {"role": "assistant", "content": "東京"}],
         "source": None if i % 3 == 0 else "x", "score": i / 4} for i in range(100)]


def main():
    program = sys.argv[1]
    table = pyarrow.Table.from_pylist(ROWS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pyarrow.parquet.write_table(table, folder / "a.parquet", row_group_size=30, compression="zstd")
        with pyarrow.ipc.new_file(str(folder / "file.arrow"), table.schema) as writer:
            writer.write_table(table, max_chunksize=40)
        with pyarrow.ipc.new_stream(str(folder / "stream.arrow"), table.schema) as writer:
            writer.write_table(table, max_chunksize=40)
        for file in "a.parquet", "file.arrow", "stream.arrow":
            out = folder / (file + ".jsonl")
            subprocess.run([program, "data", "convert", "--input", str(folder / file), "--output", str(out)], check=True,
                           env=os.environ | {"CONCORD_PYTHON": sys.executable})
            found = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
            if found != ROWS:
                raise AssertionError(f"{file}: other rows than went in, first {found[:1]}")
    print("3 files with 100 rows each: the same")


if __name__ == "__main__":
    main()
