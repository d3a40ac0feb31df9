"""Makes golden data anew and compares it with the committed files: check.py PROGRAM models|megatron

models: hf, lora, packing and preferences, by transformers, peft, TRL and LLaMA-Factory. Ids and configurations have to be equal,
except for the version of transformers, weights up to the rounding of normal random numbers, results within the bounds of
../README.md. megatron: groups and data, byte for byte. Exit code 77: a package is missing.
"""
import contextlib
import io
import json
import math
import pathlib
import runpy
import sys
import tempfile

GOLDEN = pathlib.Path(__file__).resolve().parent.parent
# Norm of the difference / norm of the reference. torch draws normal numbers by vectorized log, cos and sqrt, whose last bits depend
# on the processor: some 8 units of 6e-8. The result of such weights in fp32 is what ../README.md has for gradients.
WEIGHT, RESULT = 5e-7, 2e-5


def skip(reason):
    print(f"skipped: {reason}; ./run installs it into .venv")
    sys.exit(77)


def make(folder, *names):
    for name in names:
        sys.argv = [f"make_{name}.py", str(folder)]
        runpy.run_path(str(GOLDEN / "make" / f"make_{name}.py"), run_name="__main__")


def files(folder, sets):
    return {str(path.relative_to(folder)) for each in sets for path in (folder / each).rglob("*") if path.is_file()}


worst = {}  # by bound


def compare_tensors(name, made, committed):
    from safetensors.torch import load_file
    made, committed = load_file(made), load_file(committed)
    assert made.keys() == committed.keys(), f"{name}: {made.keys() ^ committed.keys()}"
    for key, wanted in committed.items():
        found = made[key]
        assert found.dtype == wanted.dtype and found.shape == wanted.shape, f"{name}: {key} is {found.dtype} {found.shape}"
        bound = 0 if not wanted.is_floating_point() else RESULT if name.endswith("expected.safetensors") else WEIGHT
        error = ((found - wanted).double().norm() / wanted.double().norm().clamp_min(1e-30)).item()
        worst[bound] = max(worst.get(bound, 0), error)
        assert error <= bound, f"{name}: {key} differs by {error:g}, bound {bound:g}"


def compare_checksums(name, made, committed):
    """Bounds of ../README.md for sums of weights: rounding errors of n elements of size sqrt(sumsq / n)."""
    assert made.keys() == committed.keys(), name
    for key, wanted in committed.items():
        size = math.sqrt(wanted["sumsq"] * math.prod(wanted["shape"]))
        for of, scale in (("sum", size), ("ramp", size), ("sumsq", wanted["sumsq"])):
            assert abs(made[key][of] - wanted[of]) <= 2e-5 * scale, f"{name}: {of} of {key} is {made[key][of]}, not {wanted[of]}"


def compare_configurations(name, made, committed):
    for values in (made, committed):
        values.pop("transformers_version", None)
    assert made == committed, f"{name}: {sorted(key for key in made | committed if made.get(key) != committed.get(key))} differ"


def compare(name, made, committed):
    if name.endswith(".safetensors"):
        return compare_tensors(name, made, committed)
    if name == "lora/merged_checksums.json":
        return compare_checksums(name, json.loads(made.read_text()), json.loads(committed.read_text()))
    if name.endswith("config.json"):
        return compare_configurations(name, json.loads(made.read_text()), json.loads(committed.read_text()))
    assert made.read_bytes() == committed.read_bytes(), f"{name} differs"


def compare_losses(found, wanted):
    """Compares numbers in float64 up to the last bits, in which versions of libm differ."""
    if isinstance(wanted, (dict, list)):
        keys = wanted if isinstance(wanted, dict) else range(len(wanted))
        assert len(found) == len(wanted), (found, wanted)
        for key in keys:
            compare_losses(found[key], wanted[key])
    elif isinstance(wanted, float):
        assert math.isclose(found, wanted, rel_tol=1e-12, abs_tol=1e-12), (found, wanted)
    else:
        assert found == wanted, (found, wanted)


def check_preferences():
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        runpy.run_path(str(GOLDEN / "preferences/make_preferences.py"), run_name="__main__")
    compare_losses(json.loads(said.getvalue()), json.loads((GOLDEN / "preferences/losses.json").read_text()))


def main():
    which = sys.argv[2]
    try:
        if which == "models":
            check_preferences()
        sets, names = {"models": (("hf", "lora", "packing"), ("hf", "lora", "packing")),
                       "megatron": (("groups", "data"), ("groups", "data", "blends"))}[which]
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            make(folder, *names)
            made = {name for name in files(folder, sets) if "/cache/" not in name}
            absent = files(GOLDEN, sets) - made - {"data/runs.json", "data/make_runs.py"}
            assert not absent, f"not made: {sorted(absent)}"
            for name in sorted(made):
                compare(name, folder / name, GOLDEN / name)
        print(f"{len(made)} files made anew are the committed ones; largest difference by bound: {worst}")
    except ImportError as missing:
        skip(str(missing))


if __name__ == "__main__":
    main()
