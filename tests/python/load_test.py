"""concord.load compared with safetensors: load_test.py PROGRAM. PYTHONPATH has the package."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import concord
import torch
from safetensors.torch import load_file, save_file

PROGRAM = sys.argv.pop(1)
MODEL = pathlib.Path(__file__).parents[1] / "golden/hf/qwen2-tiny"


class LoadTest(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.folder = pathlib.Path(self.scratch.name)

    def expect_equal(self, ours, theirs):
        self.assertEqual(ours.keys(), theirs.keys())
        for name, tensor in theirs.items():
            self.assertEqual((ours[name].dtype, ours[name].shape), (tensor.dtype, tensor.shape), name)
            self.assertEqual(bytes(ours[name].contiguous().flatten().view(torch.uint8)),
                             bytes(tensor.contiguous().flatten().view(torch.uint8)), name)

    def test_models(self):
        self.expect_equal(concord.load(MODEL), load_file(MODEL / "model.safetensors"))
        shards = self.folder / "shards"
        subprocess.run([PROGRAM, "convert", "--from", MODEL, "--to", shards, "--max_shard_size", "100KB", "--dtype", "bfloat16"],
                       check=True, stdout=subprocess.DEVNULL)
        files = sorted(shards.glob("*.safetensors"))
        self.assertGreater(len(files), 1)
        self.expect_equal(concord.load(str(shards)), {name: value for file in files for name, value in load_file(file).items()})

    def test_all_types_at_any_place(self):
        types = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
                 torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2]
        tensors = {f"{i}": torch.arange(i % 4 + 1).to(each) for i, each in enumerate(types)}
        tensors |= {"scalar": torch.tensor(2.5), "empty": torch.zeros(0, 3), "matrix": torch.randn(3, 5)}
        save_file(tensors, self.folder / "a.safetensors")
        self.expect_equal(concord.load(self.folder / "a.safetensors"), tensors)
        # A header of odd length, after which nothing is aligned.
        raw = (self.folder / "a.safetensors").read_bytes()
        length = int.from_bytes(raw[:8], "little")
        header = raw[8:8 + length].rstrip()
        header += b" " * (1 + len(header) % 2)
        (self.folder / "odd.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + raw[8 + length:])
        self.expect_equal(concord.load(self.folder / "odd.safetensors"), tensors)
        # A change in memory is not one of the file.
        concord.load(self.folder / "a.safetensors")["matrix"].zero_()
        self.expect_equal(concord.load(self.folder / "a.safetensors"), tensors)

    def test_metrics(self):
        rows = [{"step": 1, "loss": 2.5}, {"step": 2, "loss": 0.1, "eval_loss": 3, "note": "x"}]
        (self.folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        columns = concord.load(self.folder / "metrics.jsonl")
        self.assertEqual(list(columns), ["step", "loss", "eval_loss"])
        self.assertEqual(columns["loss"].tolist(), [2.5, 0.1])
        self.assertTrue(columns["eval_loss"][0].isnan() and columns["eval_loss"][1] == 3)

    def test_damaged_files(self):
        raw = (MODEL / "model.safetensors").read_bytes()
        for name, content in {"empty": b"", "short": raw[:4], "cut": raw[:-1], "huge": b"\xff" * 16,
                              "text": b"\x05" + bytes(7) + b"hello"}.items():
            path = self.folder / f"{name}.safetensors"
            path.write_bytes(content)
            with self.assertRaisesRegex(concord.ConfigError, f"cannot read .*{name}.safetensors' as safetensors"):
                concord.load(path)
        with self.assertRaisesRegex(concord.ConfigError, "must be a .safetensors or .jsonl file, or a folder with one of"):
            concord.load(self.folder)


if __name__ == "__main__":
    unittest.main()
