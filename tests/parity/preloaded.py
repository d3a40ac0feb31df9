"""Runs of `concord` that are forked from one process with libtorch, like RunningProcess in C++
(tests/processes/preloaded.cpp).

run(command, env=None, cwd=None, timeout=None) is subprocess.run with the same arguments, capture_output=True and
text=True; any thread may call it. If CONCORD_PRELOADED is not set, or for a subcommand that does not use libtorch, it
calls subprocess.run. An LD_PRELOAD of |env| is loaded with the program: a library with its own variables reads them
again in reload_variables() (file_faults.cpp).
"""

import os
import resource
import select
import signal
import socket
import struct
import subprocess
import tempfile
import threading

LOADED = ("LD_", "GLIBC_", "MALLOC_", "OMP_", "GOMP_", "OPENBLAS_", "MKL_", "DNNL_", "ONEDNN_", "ATEN_", "TORCH_", "PYTORCH_",
          "CONCORD_TORCH")  # as in preloaded_request.h
LIMITS = 16  # RLIM_NLIMITS
servers = {}  # by program and the variables at loading; None: not possible
lock = threading.Lock()  # guards |servers| and the requests to them


def start_server(program, env):
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    libraries = [os.environ["CONCORD_PRELOADED"], *filter(None, [env.get("LD_PRELOAD")])]
    process = subprocess.Popen(
        [program], pass_fds=[other.fileno()], stdin=subprocess.DEVNULL,
        env=env | {"LD_PRELOAD": ":".join(libraries), "PRELOADED_SOCKET": str(other.fileno()),
                   "PRELOADED_LIBRARY": os.path.join(env["CONCORD_PLUGIN_PATH"], "libconcordtorch.so")})
    other.close()
    return (own, process) if own.recv(4) == struct.pack("i", 0) else None


def request(words, env):
    ignored = sum(1 << number for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN and
                  number not in (signal.SIGPIPE, signal.SIGXFSZ))  # Python's own, which subprocess restores
    limits = [value % 2**64 for kind in range(LIMITS) for value in resource.getrlimit(kind)]
    text = b"".join(os.fsencode(word) + b"\0" for word in [*words, *(f"{name}={value}" for name, value in env.items())])
    return struct.pack(f"{2 + len(limits)}Q", ignored, len(words), *limits) + text


def start(words, env, streams, cwd):
    """Returns the pid, or None if it has to be started by subprocess."""
    loaded = (words[0], *sorted(item for item in env.items() if item[0].startswith(LOADED)))
    if "CONCORD_PRELOADED" not in os.environ or "CONCORD_PLUGIN_PATH" not in env or words[1] not in ("train", "probe", "generate"):
        return None
    with lock:
        if loaded not in servers:
            servers[loaded] = start_server(words[0], env)
        if servers[loaded] is None:
            return None
        link = servers[loaded][0]
        folder = os.open(cwd or ".", os.O_RDONLY)
        socket.send_fds(link, [request(words, env)], [*(stream.fileno() for stream in streams), folder])
        os.close(folder)
        pid, = struct.unpack("i", link.recv(4))
    if pid <= 0:
        raise OSError("the process that has loaded libtorch cannot fork")
    return pid


def wait(pid, words, timeout):
    if timeout is not None:
        end = os.pidfd_open(pid)
        ended, _, _ = select.select([end], [], [], timeout)
        os.close(end)
        if not ended:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise subprocess.TimeoutExpired(words, timeout)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def run(command, env=None, cwd=None, timeout=None):
    env = dict(os.environ if env is None else env)
    words = [str(word) for word in command]
    with open(os.devnull) as null, tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+", errors="replace") as err:
        pid = start(words, env, (null, out, err), cwd)
        if pid is None:
            return subprocess.run(words, env=env, capture_output=True, text=True, errors="replace", cwd=cwd, timeout=timeout)
        code = wait(pid, words, timeout)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(words, code, out.read(), err.read())
