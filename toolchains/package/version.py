"""The version of the wheel, for scikit-build-core: that of toolchains/version.cmake."""

import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


def dynamic_metadata(_settings, _project):
    command = ["cmake", f"-DROOT={ROOT}", "-P", ROOT / "toolchains/version.cmake"]
    return {"version": subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()}
