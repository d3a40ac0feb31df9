"""`concord.launch`: a Python function as the ranks of a job. `python -m concord._launch FOLDER` is one of them.

The function travels like that of multiprocessing: by its name in a module or script, which the ranks import, or by value in a
notebook (cloudpickle).
"""

import multiprocessing.spawn
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import tempfile
import traceback

from concord import _library, _program


def launch(function, args=(), *, nproc):
    """Calls `function(*args)` in `nproc` new processes, the ranks of a job on this machine.

    Returns the result of rank 0. In a script, call it under `if __name__ == "__main__":`. If a rank raises, the others are
    stopped and Error is raised with its traceback. Ctrl-C stops all ranks, which save before KeyboardInterrupt is raised.
    """
    if "RANK" in os.environ:
        raise _library.ConfigError("concord.launch is called in a rank of a job; call it once, in a script under `if __name__ "
                                   "== \"__main__\":`")
    with tempfile.TemporaryDirectory(prefix="concord-") as name:
        folder = pathlib.Path(name)
        (folder / "work").write_bytes(pickled(function, args))
        command = [_program.FOLDER / "bin/concord", "launch", "--nproc", str(nproc), "--", sys.executable, "-m",
                   "concord._launch", name]
        code = wait_for(command, {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
        failures = sorted(folder.glob("failure-*"), key=lambda each: each.stat().st_mtime_ns)
        if code == 2 and not failures:
            raise _library.ConfigError(f"cannot start {nproc!r} ranks; the reason is on standard error")
        if failures or code != 0:
            raise _library.Error(failures[0].read_text() if failures else f"a rank has failed; concord launch exited with {code}")
        return pickle.loads((folder / "result").read_bytes())


def pickled(function, args):
    preparation = multiprocessing.spawn.get_preparation_data("concord")
    del preparation["authkey"]  # not needed, and secret
    pickler = pickle
    if getattr(function, "__module__", "") == "__main__" and not hasattr(sys.modules["__main__"], "__file__"):
        try:
            import cloudpickle as pickler
        except ImportError:
            raise _library.ConfigError(f"{function!r} is defined in a notebook; pip install cloudpickle, which carries such "
                                       "functions to the ranks, or put it into a module") from None
    try:
        return pickle.dumps((preparation, pickler.dumps((function, args))))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise _library.ConfigError(f"{function!r} cannot be sent to the ranks: {error}; give a function of a module or "
                                   "script, and arguments that pickle accepts") from error


def wait_for(command, environment):
    # A session of its own, so that it gets a Ctrl-C once, from here; a second one would kill the ranks.
    sys.stdout.flush()
    with subprocess.Popen(command, env=environment, start_new_session=True) as launcher:
        try:
            return launcher.wait()
        except BaseException:
            launcher.send_signal(signal.SIGINT)
            launcher.wait()
            raise


def run_rank(folder):
    rank = os.environ["RANK"]
    preparation, work = pickle.loads((folder / "work").read_bytes())
    try:
        multiprocessing.spawn.prepare(preparation)  # imports the script of the caller
        function, args = pickle.loads(work)
        result = function(*args)
        if rank == "0":
            (folder / "result").write_bytes(pickle.dumps(result))
    except Exception:
        (folder / f"failure-{rank}").write_text(f"rank {rank} of concord.launch raised\n{traceback.format_exc()}")
        raise


if __name__ == "__main__":
    run_rank(pathlib.Path(sys.argv[1]))
