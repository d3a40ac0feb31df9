"""`concord convert` compared with torch and transformers: convert.py PROGRAM

Tensors of every type with NaN, infinities, subnormal numbers, the midpoint between any two halfs and random bits are
converted to each type; the result must be bitwise identical to torch's .to() (for NaN only that it is NaN). A model is
converted and loaded by transformers, in one file and in several. Exit code 77: transformers is missing, nothing was
compared.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import torch
    import transformers
    from safetensors.torch import load_file, save_file
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

MODEL = Path(__file__).parent.parent / "golden/hf/qwen2-tiny"
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
INTEGER_OF = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def convert(program, source, target, *words):
    command = [program, "convert", "--from", str(source), "--to", str(target), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.returncode}\n{done.stdout}{done.stderr}")


def hard_values():
    """Returns fp32: every half, the midpoint between it and the next, and the adjacent numbers; likewise for bf16;
    random bits."""
    halfs = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.float16).float()
    halfs = halfs[torch.isfinite(halfs)]
    bits = halfs.view(torch.int32)
    middles = torch.cat([bits + 0x1000, bits + 0x0fff, bits + 0x1001]).view(torch.float32)
    tiny = torch.arange(-40000, 40000, dtype=torch.float32) * 2.0**-26  # middles of subnormal halfs and around
    wide = (torch.arange(65536, dtype=torch.int64) << 16).to(torch.int32)
    around = torch.cat([wide, wide | 0x8000, wide | 0x7fff, wide | 0x8001]).view(torch.float32)
    generator = torch.Generator().manual_seed(1)
    random = torch.randint(-2**31, 2**31, (1 << 20,), generator=generator, dtype=torch.int64).to(torch.int32)
    large = torch.tensor([65504.0, 65519.996, 65520.0, 65536.0, 3.4028235e38, *map(float, ("inf", "-inf", "nan"))])
    return torch.cat([halfs, middles, tiny, around, random.view(torch.float32), large])


def expect_same(name, got, wanted):
    if got.dtype != wanted.dtype or got.shape != wanted.shape:
        sys.exit(f"{name}: {got.dtype} {list(got.shape)}, torch has {wanted.dtype} {list(wanted.shape)}")
    if not wanted.dtype.is_floating_point:
        if not torch.equal(got, wanted):
            sys.exit(f"{name}: other values")
        return
    nan = torch.isnan(wanted)
    as_bits = INTEGER_OF[wanted.element_size()]
    wrong = (torch.isnan(got) != nan) | (~nan & (got.view(as_bits) != wanted.view(as_bits)))
    if wrong.any():
        at = int(wrong.nonzero()[0])
        sys.exit(f"{name}: {int(wrong.sum())} of {wrong.numel()} differ; "
                 f"element {at} is {got[at]}, torch has {wanted[at]}")


def check_values(program, folder):
    hard = hard_values()
    generator = torch.Generator().manual_seed(2)
    doubles = torch.cat([hard.double(), torch.randn(1 << 16, generator=generator, dtype=torch.float64) * 1e-6,
                         torch.tensor([1e300, -1e-300, 1 + 2.0**-24 + 2.0**-50])])
    tensors = {"f32": hard, "f64": doubles, "f16": hard.half(), "bf16": hard.bfloat16(), "none": torch.zeros(0, 3),
               "scalar": torch.tensor(1.0009765625), "i64": torch.arange(-5, 5), "bool": torch.tensor([True, False])}
    source = folder / "values"
    source.mkdir()
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    for name, dtype in TYPES.items():
        convert(program, source, folder / name, "--dtype", name)
        result = load_file(folder / name / "model.safetensors")
        assert result.keys() == tensors.keys()
        for key, value in tensors.items():
            # c10::Half is made of a float, and so are ours; on Arm torch rounds once: other bits in one of two million.
            known = value.float() if value.dtype == torch.float64 else value
            wanted = known.to(dtype) if value.dtype.is_floating_point else value
            expect_same(f"{key} to {name}", result[key].reshape(-1), wanted.reshape(-1))
    convert(program, source, folder / "kept")
    for key, value in load_file(folder / "kept/model.safetensors").items():
        same = torch.equal(value.reshape(-1).view(torch.uint8), tensors[key].reshape(-1).view(torch.uint8))
        assert value.dtype == tensors[key].dtype and same, key


def check_model(program, folder):
    before = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).state_dict()
    for name, dtype in TYPES.items():
        for words in ([], ["--max_shard_size", "100KB"]):
            target = folder / f"model-{name}-{len(words)}"
            convert(program, MODEL, target, "--dtype", name, *words)
            assert (target / "model.safetensors.index.json").exists() == bool(words)
            assert (target / "generation_config.json").read_bytes() == (MODEL / "generation_config.json").read_bytes()
            config = json.loads((target / "config.json").read_text())
            assert {config.get("dtype"), config.get("torch_dtype")} - {None} == {name}, config
            model = transformers.AutoModelForCausalLM.from_pretrained(target, dtype="auto")
            assert model.dtype == dtype, model.dtype
            after = model.state_dict()
            assert after.keys() == before.keys()
            for key, value in before.items():
                expect_same(f"{key} of the model to {name}", after[key].reshape(-1), value.to(dtype).reshape(-1))


def main():
    with tempfile.TemporaryDirectory() as folder:
        check_values(sys.argv[1], Path(folder))
        check_model(sys.argv[1], Path(folder))
    print("all values as torch has them, all models loaded by transformers")


if __name__ == "__main__":
    main()
