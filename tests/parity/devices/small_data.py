"""Data for the tiny models of tests/golden."""

import json


def write_rows(folder, vocabulary=300):
    """Writes 256 rows of 32 tokens below |vocabulary| into the folder, and returns the file."""
    data = folder / "data.jsonl"
    with data.open("w") as file:
        for i in range(256):
            file.write(json.dumps({"input_ids": [(i * i * 31 + t * 7) % vocabulary for t in range(32)]}) + "\n")
    return data
