"""The command `concord` of an installed wheel: becomes the program, with the libtorch of the package torch."""

import importlib.util
import os
import pathlib
import sys

FOLDER = pathlib.Path(__file__).absolute().parent  # in a build, its files are links


def use_this_python():
    """Sets CONCORD_TORCH to the folder of the package torch and CONCORD_PYTHON to this Python, unless they are set.

    Does not import torch, which takes long."""
    spec = importlib.util.find_spec("torch")
    if spec and spec.submodule_search_locations and not os.environ.get("CONCORD_TORCH"):
        os.environ["CONCORD_TORCH"] = next(iter(spec.submodule_search_locations))
    os.environ.setdefault("CONCORD_PYTHON", sys.executable)


def main():
    use_this_python()
    # The path of this command, for the commands that the program suggests.
    os.execv(FOLDER / "bin/concord", [os.path.abspath(sys.argv[0]), *sys.argv[1:]])
