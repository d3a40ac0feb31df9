"""Runs of the program and of the package, for the tests of this folder: TEST.py PROGRAM. PYTHONPATH has the package."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

# Also in ranks, which import the test again without its arguments.
PROGRAM = os.environ.get("CONCORD_TESTED_PROGRAM") or sys.argv.pop(1)
os.environ["CONCORD_TESTED_PROGRAM"] = PROGRAM
GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
MODEL = str(GOLDEN / "hf/qwen2-tiny")
TOKENS = str(GOLDEN / "train/tokens.safetensors")
ROWS = [{"input_ids": [(7 * i + j * j) % 96 for j in range(9 + i % 5)]} for i in range(24)]
SETTINGS = {"model": MODEL, "seq_length": 32, "per_device_train_batch_size": 2, "max_steps": 4, "logging_steps": 1,
            "learning_rate": 1e-3, "report_to": [], "save_strategy": "no", "disable_tqdm": True}


def words(settings):
    return [f"--{name}={json.dumps(value) if not isinstance(value, str) else value}" for name, value in settings.items()]


def program(settings, code=0, command=(PROGRAM, "train")):
    done = subprocess.run([*command, *words(settings)], capture_output=True, text=True)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done


def values(folder):
    rows = [json.loads(line) for line in (pathlib.Path(folder) / "metrics.jsonl").read_text().splitlines()]
    return [(row["step"], row["loss"], row["grad_norm"], row["learning_rate"], row["tokens"]) for row in rows if "loss" in row]


class RunTest(unittest.TestCase):
    """Has a folder for output_dir."""

    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.folder = pathlib.Path(self.scratch.name)

    def settings(self, name, **more):
        return {**SETTINGS, "train_data": TOKENS, "output_dir": str(self.folder / name), **more}
