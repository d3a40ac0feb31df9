"""Makes the wheel of a finished build, installs it into a fresh environment and trains: wheel_test.py BUILD TORCH [WHEEL].

The environment has no compiler, no CMake and nothing else on PATH; it sees TORCH, the folder torch of an installed wheel,
by a .pth file. Losses are compared bit for bit with those of the build's own program. Exit code 77: pip can reach no
packages, nothing was tested. With WHEEL, which was made of BUILD, none is made.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import venv
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SETTINGS = ["--nproc", "1", "--max_steps", "6", "--logging_steps", "1", "--save_strategy", "no", "--report_to", "none"]


def run(*command, code=0, **options):
    """Returns what the command prints, on both streams; it must exit with |code|."""
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", **options)
    assert done.returncode == code, f"exit code {done.returncode}, expected {code}: {command}\n{done.stdout}"
    return done.stdout


def make_wheel(build, folder):
    """Returns the wheel, made by scikit-build-core, which pip installs for it."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    get = subprocess.run([*pip, "download", "-q", "--no-deps", "-d", folder, "scikit-build-core"], capture_output=True, text=True)
    if get.returncode != 0:
        print(f"skipped: pip cannot install scikit-build-core, which makes the wheel: {get.stderr.strip().splitlines()[-1]}")
        sys.exit(77)
    run(*pip, "wheel", "--no-deps", "-w", folder / "dist", ROOT, env={**os.environ, "CONCORD_BUILD": str(build)})
    [wheel] = (folder / "dist").glob("concord-*.whl")
    return wheel


def check_wheel(wheel, build):
    """The wheel has the build's version, requires its libtorch and holds its files."""
    version = run(build / "bin/concord", "--version")
    with zipfile.ZipFile(wheel) as files:
        names = files.namelist()
        [metadata] = [files.read(name).decode() for name in names if name.endswith("dist-info/METADATA")]
    libtorch = re.search(r"libtorch (\d+\.\d+)", version)[1]
    assert f"Requires-Dist: torch=={libtorch}.*" in metadata, metadata
    assert f"\nVersion: {version.split()[1]}\n" in metadata, (metadata, version)
    for name in ("bin/concord", "bin/concord-conform", "lib/concord/libconcord_cpu.so", "lib/concord/libconcordtorch.so", "py.typed",
                 "__init__.pyi", "_settings.pyi"):
        assert f"concord/{name}" in [re.sub("/lib[^/]*/.*concord/", "/lib/concord/", each) for each in names], (name, names)


def check_libraries(package):
    """A repaired wheel has all libraries that the program loads, except those of every system with glibc."""
    for line in run("ldd", package / "bin/concord").splitlines():
        name = line.split()[0]
        of_system = re.match(r"linux-vdso|/lib.*/ld-linux|lib(c|m|dl|rt|pthread|resolv|gcc_s|stdc\+\+|z)\.so", name)
        assert of_system or f" => {package.parent}/concord.libs/" in line.replace("/concord/bin/../..", ""), line


def losses(output):
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [(row["step"], row["loss"], row["grad_norm"]) for row in rows if "loss" in row]


def main():
    build, torch = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        wheel = pathlib.Path(sys.argv[3]) if len(sys.argv) > 3 else make_wheel(build, folder)
        check_wheel(wheel, build)
        venv.create(folder / "venv", with_pip=False)
        [packages] = (folder / "venv/lib").glob("python3*/site-packages")
        run(sys.executable, "-m", "pip", "--python", folder / "venv/bin/python", "install", "-q", "--no-deps", wheel)
        program = folder / "venv/bin/concord"
        # No library is looked for in the checkout.
        run("cmake", f"-DFOLDER={packages / 'concord'}", f"-DNOT_IN={ROOT}", "-P", ROOT / "tests/install/runpath.cmake")
        if "manylinux" in wheel.name:
            check_libraries(packages / "concord")
        alone = {"PATH": str(folder / "venv/bin"), "OMP_NUM_THREADS": "1", "HOME": scratch}

        # Without torch it reports what to install.
        error = run(program, "train", *SETTINGS, "--output_dir", folder / "none", code=1, env=alone)
        assert "pip install torch==" in error, error
        # With another torch too. The version is in a header of the wheel.
        other = folder / "other/torch/include/torch/headeronly"
        other.mkdir(parents=True)
        (other / "version.h").write_text("#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 9\n")
        error = run(program, "train", *SETTINGS, "--output_dir", folder / "none", code=1,
                    env={**alone, "CONCORD_TORCH": str(folder / "other/torch")})
        assert "which is torch 2.9; this program was built with" in error, error

        doctor = run(program, "doctor", code=1, env={**alone, "CONCORD_TORCH": str(folder / "other/torch")})
        assert "torch 2.9" in doctor and "-> libtorch 2." in doctor and "pip install torch==2." in doctor, doctor

        (packages / "torch.pth").write_text(f"{torch.parent}\n")
        assert run(program, "--version", env=alone) == run(build / "bin/concord", "--version")
        doctor = run(program, "doctor", env=alone)
        assert re.search(rf"ok +libtorch +2\.[0-9.]+, CONCORD_TORCH is {re.escape(str(torch))}", doctor), doctor
        platforms = run(program, "platforms", env=alone)
        assert str(packages / "concord") in platforms and str(build) not in platforms, platforms
        run(program, "train", *SETTINGS, "--output_dir", folder / "wheel", env=alone)
        run(build / "bin/concord", "train", *SETTINGS, "--output_dir", folder / "build",
            env={**os.environ, "OMP_NUM_THREADS": "1"})
        ours, theirs = losses(folder / "wheel"), losses(folder / "build")
        assert len(ours) == 6 and ours == theirs, (ours, theirs)
        # The package imports the torch of the .pth, and trains with the losses of the program.
        settings = {word[2:]: value for word, value in zip(SETTINGS[::2], SETTINGS[1::2])}
        code = f"import concord; concord.train(**{settings}, output_dir={str(folder / 'python')!r})"
        run(folder / "venv/bin/python", "-c", code, env=alone)
        assert losses(folder / "python") == ours, (ours, losses(folder / "python"))
        help = run(folder / "venv/bin/python", "-m", "concord", "train", "--help", env=alone)
        assert "--learning_rate" in help, help
    print(f"{wheel.name}: installed, trained 6 steps with the losses of the build's program")


if __name__ == "__main__":
    main()
