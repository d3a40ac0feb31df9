"""The Debian package and the tarball of a finished build: packages_test.py BUILD TORCH [FOLDER].

Both are made by cpack, or taken from FOLDER, unpacked and trained with; losses are compared bit for bit with those of the
build's own program. Exit code 77: a tool is missing, nothing was tested.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

from wheel_test import ROOT, SETTINGS, losses, run


def make_packages(build, torch, folder):
    run("cpack", "--config", ROOT / "toolchains/package/cpack.cmake", "-B", folder,
        env={**os.environ, "CONCORD_BUILD": str(build), "CONCORD_TORCH": str(torch)})
    return folder


def check_fields(package, build):
    fields = dict(line.split(": ", 1) for line in run("dpkg-deb", "--field", package).splitlines() if ": " in line[1:] and line[0] != " ")
    version = run(build / "bin/concord", "--version").split()[1].replace(".dev", "~dev")
    assert (fields["Package"], fields["Version"]) == ("concord", version), fields
    assert fields["Architecture"] == run("dpkg", "--print-architecture").strip(), fields
    depends = re.split(r",\s*", fields["Depends"])
    assert "python3" in depends and any(each.startswith("libyaml-cpp") for each in depends), depends
    assert not any("torch" in each for each in depends), depends


def files_below(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def main():
    build, torch = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    missing = [name for name in ("cpack", "dpkg-deb", "dpkg-shlibdeps") if not shutil.which(name)]
    if missing:
        print(f"skipped: there is no {missing[0]}")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        made = pathlib.Path(sys.argv[3]) if len(sys.argv) > 3 else make_packages(build, torch, folder / "made")
        [package], [archive] = made.glob("*.deb"), made.glob("*.tar.gz")
        check_fields(package, build)
        run("dpkg-deb", "--extract", package, folder / "deb")
        with tarfile.open(archive) as files:
            files.extractall(folder / "tar", filter="data")
        [top] = (folder / "tar").iterdir()
        assert files_below(folder / "deb/usr") == files_below(top), files_below(folder / "deb/usr") ^ files_below(top)
        environment = {"PATH": "/usr/bin:/bin", "HOME": scratch, "CONCORD_TORCH": str(torch), "OMP_NUM_THREADS": "1"}
        run(build / "bin/concord", "train", *SETTINGS, "--output_dir", folder / "build", env={**os.environ, "OMP_NUM_THREADS": "1"})
        for prefix in (folder / "deb/usr", top):
            run("cmake", f"-DFOLDER={prefix}", f"-DNOT_IN={ROOT}", "-P", ROOT / "tests/install/runpath.cmake")
            program = prefix / "bin/concord"
            assert (prefix / "share/doc/concord/copyright").read_bytes() == (ROOT / "LICENSE").read_bytes()
            assert run(program, "--version", env=environment) == run(build / "bin/concord", "--version")
            assert str(prefix) in run(program, "platforms", env=environment)
            run(program, "train", *SETTINGS, "--output_dir", prefix / "run", env=environment)
            assert len(losses(prefix / "run")) == 6 and losses(prefix / "run") == losses(folder / "build")
        error = run(top / "bin/concord", "train", *SETTINGS, "--output_dir", folder / "none", code=1,
                    env={**environment, "CONCORD_TORCH": ""})
        assert "pip install torch==" in error, error
        print(f"{package.name}, {archive.name}: unpacked, trained 6 steps with the losses of the build's program")


if __name__ == "__main__":
    main()
