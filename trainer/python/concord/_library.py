"""Loads the extension module: its libtorch is that of the package torch, its plugins are those of this package."""

import os
import subprocess

import torch  # before _core, which uses its libtorch

from concord import _program

_program.use_this_python()
_plugins = [os.environ.get("CONCORD_PLUGIN_PATH", ""), *map(str, _program.FOLDER.glob("lib*/concord"))]
os.environ["CONCORD_PLUGIN_PATH"] = ":".join(filter(None, _plugins))
try:
    from concord import _core as core
except ImportError as error:
    raise ImportError(f"{error}. The torch of this Python is {torch.__version__}; `pip check` tells whether this wheel of "
                      "concord was built with it") from error

ConfigError, Error, version, current_platform = core.ConfigError, core.Error, core.version, core.current_platform
PredictedSample, Trainer = core.PredictedSample, core.Trainer
TrainerControl, TrainerState = core.TrainerControl, core.TrainerState
Communicator, Event, Platform = core.Communicator, core.Event, core.Platform
ProcessGroup, Stream, Work = core.ProcessGroup, core.Stream, core.Work
for _type in vars(core).values():
    if isinstance(_type, type):
        _type.__module__ = "concord"

# Variables by which a process knows that it is in a job (core/mesh/job_environment.cpp).
_JOB = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_RANK", "OMPI_", "PMIX_", "SLURM_PROCID")


def run_program(*words):
    """Returns what the program prints; a rank's own, it does not join the job. Raises ConfigError and Error."""
    alone = {name: value for name, value in os.environ.items() if not name.startswith(_JOB)}
    done = subprocess.run([_program.FOLDER / "bin/concord", *map(str, words)], env=alone, capture_output=True, text=True)
    if done.returncode != 0:
        raise (ConfigError if done.returncode == 2 else Error)(done.stderr.strip().removeprefix("concord: "))
    return done.stdout
