"""Communicators with ranks on two hosts (network namespaces), created, used for one call and destroyed immediately.

    communicators.py HOST_RANK PLUGIN SETUPS [JOBS]

JOBS times, four processes create SETUPS communicators one after another. All sums are correct, and all processes exit
by themselves: none crashes or hangs. Before that, reductions and exchanges of many kinds and sizes on two hosts, and on
three, are bitwise identical to those of the same number of ranks on one host, and strangers on the job's ports have no
effect. Addresses may have labels. An interface that is not running yet is waited for. If the engine cannot see the
network, the ranks report it instead of waiting.
"""

import subprocess
import sys
import threading
import time

from hosts import Hosts, skip_without_engine
from ranks import Ranks


def bits(host_count, ranks_per_host, program, plugin, label=None, **environment):
    with Hosts(host_count, label) as hosts:
        ranks = Ranks.joined(hosts, program, plugin, host_count * ranks_per_host, **environment)
        answers = ranks.ask_all("bits")
        assert all(answer.isdigit() for answer in answers), answers
        ranks.end()
        return answers


def check_bits(program, plugin):
    for host_count, ranks_per_host in ((2, 2), (3, 1)):
        count = host_count * ranks_per_host
        together = bits(1, count, program, plugin, CONCORD_CPU_NETWORK="never")
        chosen = {"label": "link0:job", "CONCORD_CPU_INTERFACE": "link0:job"} if host_count == 3 else {}
        apart = bits(host_count, ranks_per_host, program, plugin, **chosen)
        assert together == apart, f"{count} ranks on one host {together}, on {host_count} hosts {apart}"
        print(f"{count} ranks have the same bits on {host_count} hosts as on one")


# Connects to every port at the same time, once per kind of message, sends it, and stays connected. Prints how many
# of the ports have accepted it within a second. UCX's message is its magic number and a request to connect from an
# address of an unknown family, on which UCX 1.13 aborts its process.
STRANGER = """import os, select, socket, struct, sys
ucx = struct.pack("<QBIIBQ", 0xCAFEBABE12345678, 32, 29, 1, 0, 7) + b"\\xff" * 16 + bytes(30)
kept, accepted = [], set()
for port in sys.argv[2:]:
    for words in (b"", b"GET / HTTP/1.1\\r\\n\\r\\n", os.urandom(300), b"concord3" + bytes(4000), ucx):
        kept.append((socket.socket(), int(port), words))
        kept[-1][0].setblocking(False)
        kept[-1][0].connect_ex((sys.argv[1], int(port)))
for sock, port, words in kept:
    if select.select([], [sock], [], 0 if accepted else 1)[1] and not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        accepted.add(port)
        sock.sendall(words)
print(len(accepted), flush=True)
sys.stdin.read()
"""


def check_strangers(program, plugin):
    """A host that is not part of the job reaches only the port of the communicator's id, and has no effect there."""
    with Hosts(3) as hosts:
        ranks = Ranks.joined(hosts.first(2), program, plugin, CONCORD_JOB_TOKEN="the token of this job")
        before = ranks.ask_all("bits")
        ports = hosts.listening_ports(0)
        stranger = hosts.start(2, [sys.executable, "-c", STRANGER, hosts.addresses[0], *map(str, ports)], text=True,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        accepted = int(stranger.stdout.readline())
        after = ranks.ask_all("bits")
        assert before == after, f"before {before}, with strangers {after}"
        assert ranks.ask_all("setups 4") == ["done"] * 4
        assert ranks.end() == [0] * 4
        assert accepted == 1 < len(ports), f"{accepted} of {len(ports)} ports have accepted a stranger"
        print(f"strangers on {len(ports)} ports disturb nothing")


def check_late_carrier(program, plugin):
    with Hosts(2) as hosts:
        hosts.set_running(1, False)
        threading.Timer(0.5, hosts.set_running, [1, True]).start()
        ranks = Ranks.joined(hosts, program, plugin, 2)
        assert ranks.end() == [0] * 2
        print("an interface that is running later is waited for")


def check_unseen(program, plugin):
    with Hosts(2) as hosts:
        ranks, answers = Ranks.join(hosts, program, plugin, with_sys=False)
        assert all("UCX cannot use the network interface link0" in answer for answer in answers), answers
        ranks.end()
        print("ranks whose engine cannot see the network say so")


def main(arguments):
    program, plugin, setups, *jobs = arguments
    skip_without_engine(plugin)
    start = time.monotonic()
    count = int(jobs[0]) if jobs else 1
    check_bits(program, plugin)
    check_strangers(program, plugin)
    check_late_carrier(program, plugin)
    check_unseen(program, plugin)
    with Hosts(2) as hosts:
        for job in range(count):
            ranks = Ranks.joined(hosts, program, plugin)
            answers = ranks.ask_all(f"setups {setups}")
            assert answers == ["done"] * 4, f"job {job}: {answers}"
            # The last communicator: some destroy it, and some just exit.
            if job % 2 == 0:
                answers = ranks.ask_all("leave")
                assert answers == ["left"] * 4, f"job {job}: {answers}"
            codes = ranks.end()
            assert codes == [0] * 4, f"job {job}: exit codes {codes}"
    print(f"{count} x {setups} communicators of 4 ranks on two hosts in {time.monotonic() - start:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
