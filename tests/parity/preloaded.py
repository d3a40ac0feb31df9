"""Runs of `concord` that are forked from one process with libtorch, as RunningProcess does in C++ (tests/processes/preloaded.cpp).

run(command, env=None) is subprocess.run(command, env=env, capture_output=True, text=True). Where CONCORD_PRELOADED is not set, or for an
environment or a subcommand that does not allow it, it is that.
"""

import os
import resource
import signal
import socket
import struct
import subprocess
import tempfile

LOADED = ("LD_", "GLIBC_", "MALLOC_", "OMP_", "GOMP_", "OPENBLAS_", "MKL_", "DNNL_", "ONEDNN_", "ATEN_", "TORCH_", "PYTORCH_",
          "CONCORD_TORCH")  # as in preloaded_request.h
LIMITS = 16  # RLIM_NLIMITS
servers = {}  # by program and what it was loaded with; None: there can be none


def start_server(program, env):
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(
        [program], pass_fds=[other.fileno()], stdin=subprocess.DEVNULL,
        env=env | {"LD_PRELOAD": os.environ["CONCORD_PRELOADED"], "PRELOADED_SOCKET": str(other.fileno()),
                   "PRELOADED_LIBRARY": os.path.join(env["CONCORD_PLUGIN_PATH"], "libconcordtorch.so")})
    other.close()
    return (own, process) if own.recv(4) == struct.pack("i", 0) else None


def request(words, env):
    ignored = sum(1 << number for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN and
                  number not in (signal.SIGPIPE, signal.SIGXFSZ))  # Python's own, which subprocess restores
    limits = [value % 2**64 for kind in range(LIMITS) for value in resource.getrlimit(kind)]
    text = b"".join(os.fsencode(word) + b"\0" for word in [*words, *(f"{name}={value}" for name, value in env.items())])
    return struct.pack(f"{2 + len(limits)}Q", ignored, len(words), *limits) + text


def run(command, env=None):
    env = dict(os.environ if env is None else env)
    words = [str(word) for word in command]
    loaded = (words[0], *sorted(item for item in env.items() if item[0].startswith(LOADED)))
    possible = "CONCORD_PRELOADED" in os.environ and "CONCORD_PLUGIN_PATH" in env and words[1] in ("train", "probe", "generate")
    if possible and loaded not in servers:
        servers[loaded] = start_server(words[0], env)
    if not possible or servers[loaded] is None:
        return subprocess.run(words, env=env, capture_output=True, text=True)
    with open(os.devnull) as null, tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        folder = os.open(".", os.O_RDONLY)
        link = servers[loaded][0]
        socket.send_fds(link, [request(words, env)], [null.fileno(), out.fileno(), err.fileno(), folder])
        os.close(folder)
        pid, = struct.unpack("i", link.recv(4))
        if pid <= 0:
            raise OSError("the process that has loaded libtorch cannot fork")
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(words, code, out.read(), err.read())
