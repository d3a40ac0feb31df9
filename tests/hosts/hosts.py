"""Hosts for tests: network namespaces of this machine, joined by a bridge, each with its own address.

A program that imports this and may not create namespaces is restarted as root of a user namespace, if the kernel allows
that; it then has its own mounts, networks and /run.
"""

import os
import re
import signal
import subprocess
import sys
import types

SKIP = 77  # what ctest counts as skipped
INSIDE = "CONCORD_HOSTS_INSIDE"  # set: this program has entered a user namespace, with the users that the value names
ONLY_ROOT = "root"
CAN_DO = (1 << 12) | (1 << 21)  # CAP_NET_ADMIN, CAP_SYS_ADMIN


def quiet(*args):
    return subprocess.run(args, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)


def enter_user_namespace():
    """Restarts the program in a user namespace, with a range of users if the system has given the user one
    (/etc/subuid, newuidmap). Returns if that is not needed or not allowed: Hosts then reports why."""
    with open("/proc/self/status", encoding="ascii") as file:
        capabilities = int(re.search(r"^CapEff:\s*(\w+)", file.read(), re.MULTILINE).group(1), 16)
    if capabilities & CAN_DO == CAN_DO or INSIDE in os.environ:
        return
    for users, mapping in ("a range", ["--map-root-user", "--map-auto"]), (ONLY_ROOT, ["--map-root-user"]):
        # "ip netns" keeps its files in /run/netns.
        enter = 'mount -t tmpfs none /run && ip link set lo up && exec "$@"'
        args = ["unshare", *mapping, "--mount", "--net", "sh", "-c", enter, "sh"]
        try:
            allowed = quiet(*args, "true").returncode == 0
        except OSError:  # there is no unshare
            return
        if allowed:
            os.environ[INSIDE] = users
            sys.stdout.flush()
            os.execvp(args[0], [*args, *sys.orig_argv])


def is_running(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return bool(file.read())  # a zombie has none
    except OSError:
        return False


def skip(why):
    print(f"skipped: {why}")
    sys.exit(SKIP)


def skip_without_engine(plugin):
    """Exits as skipped if the cpu plugin's engine for messages between hosts was not built."""
    if not os.path.exists(os.path.join(os.path.dirname(os.path.abspath(plugin)), "libconcordnet_ucx.so")):
        skip("built without UCX (libucx-dev)")


os.environ["PATH"] = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"  # where "ip" is
enter_user_namespace()


class Hosts:
    """|count| hosts; used with `with`. If namespaces cannot be created, the program exits as skipped with the
    reason."""

    def __init__(self, count, label=None):
        """|label|: an additional name of the addresses; the interface link0 then also has one without it."""
        # Names that no other test on this machine has; 15 characters are the most for an interface.
        self.names = [f"c{os.getpid()}h{i}" for i in range(count)]
        self.addresses = [f"10.{os.getpid() // 250 % 250}.{os.getpid() % 250}.{i + 1}" for i in range(count)]
        self.middle = f"c{os.getpid()}m"
        self.label = label
        self.relay = None
        self.started = []

    def __enter__(self):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that nothing is left behind
        try:
            self._make("ip", "netns", "add", self.middle)
            self._make("ip", "-n", self.middle, "link", "add", "bridge", "type", "bridge")
            self._make("ip", "-n", self.middle, "link", "set", "bridge", "up")
            for i, name in enumerate(self.names):
                self._make("ip", "netns", "add", name)
                self._make("ip", "link", "add", "link0", "netns", name, "type", "veth", "peer", "name", f"to{i}",
                           "netns", self.middle)
                self._make("ip", "-n", self.middle, "link", "set", f"to{i}", "master", "bridge", "up")
                if self.label:
                    other = f"{self.addresses[i].rsplit('.', 1)[0]}.{100 + i}/24"
                    self._make("ip", "-n", name, "addr", "add", other, "dev", "link0")
                self._make("ip", "-n", name, "addr", "add", f"{self.addresses[i]}/24", "dev", "link0", "label",
                           self.label or "link0")
                self._make("ip", "-n", name, "link", "set", "lo", "up")
                self._make("ip", "-n", name, "link", "set", "link0", "up")
        except (OSError, RuntimeError) as error:
            self.__exit__()
            skip(f"network namespaces cannot be made here: {error}")
        return self

    def __exit__(self, *_):
        for process in self.started:
            if process.poll() is None:
                process.kill()  # a launcher, with which its ranks exit
                process.wait()
        for name in [*self.names, self.middle]:
            quiet("ip", "netns", "del", name)

    @staticmethod
    def _make(*args):
        result = quiet(*args)
        if result.returncode != 0:
            raise RuntimeError(f"{' '.join(args)}: {result.stderr.strip()}")

    def start(self, host, args, with_sys=True, **more):
        """|with_sys|: /sys shows the interfaces of this host instead of the machine's."""
        enter = ["ip", "netns", "exec", self.names[host]] if with_sys else ["nsenter", f"--net=/run/netns/{self.names[host]}"]
        process = subprocess.Popen([*enter, *args], **more)
        self.started.append(process)
        return process

    def first(self, count):
        """Returns the first |count| of the hosts, for ranks; the others are for strangers."""
        return types.SimpleNamespace(names=self.names[:count], addresses=self.addresses[:count], start=self.start)

    def listening_ports(self, host):
        """Returns the TCP ports on which this host's processes listen, on any of its addresses."""
        shown = subprocess.run(["ip", "netns", "exec", self.names[host], "cat", "/proc/net/tcp", "/proc/net/tcp6"],
                               stdout=subprocess.PIPE, text=True, check=False).stdout
        rows = [line.split() for line in shown.splitlines()]
        return sorted({int(row[1].rsplit(":", 1)[1], 16) for row in rows if len(row) > 3 and row[3] == "0A"})

    def impair(self, delay_ms, loss_percent):
        """Delays frames between two hosts by |delay_ms| in each direction, and drops some. Returns what implements
        it."""
        for end in range(2):
            if quiet("ip", "netns", "exec", self.middle, "tc", "qdisc", "add", "dev", f"to{end}", "root", "netem", "delay",
                     f"{delay_ms}ms", "loss", f"{loss_percent}%").returncode != 0:
                return self._relay(delay_ms, loss_percent)
        return "netem"

    def _relay(self, delay_ms, loss_percent):
        program = [sys.executable, "-B", os.path.join(os.path.dirname(os.path.abspath(__file__)), "relay.py")]
        for end in range(2):
            self._make("ip", "netns", "exec", self.names[end], *program, "disable_offload", "link0")
            self._make("ip", "-n", self.middle, "link", "set", f"to{end}", "nomaster")
        args = ["ip", "netns", "exec", self.middle, *program, "to0", "to1", str(delay_ms), str(loss_percent)]
        self.relay = subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.started.append(self.relay)
        assert self.relay.stdout.readline() == "ready\n"
        return "a relay (this kernel has no netem)"

    def lost_frames(self):
        """Returns the number of frames that the impaired link has lost; stops a relay."""
        if self.relay is not None:
            return int(self.relay.communicate()[0])
        shown = subprocess.run(["ip", "netns", "exec", self.middle, "tc", "-s", "qdisc"], stdout=subprocess.PIPE, text=True,
                               check=True).stdout
        return sum(int(count) for count in re.findall(r"dropped (\d+)", shown))

    def round_trip(self):
        """Returns the seconds until the first host has a reply of the second, at a port without a listener."""
        program = ("import socket, sys, time\nfor _ in range(2):\n    start = time.monotonic()\n    try:\n"
                   "        socket.create_connection((sys.argv[1], 9))\n    except ConnectionRefusedError:\n"
                   "        took = time.monotonic() - start\nprint(took)\n")  # the first time also asks for the neighbour
        process = self.start(0, [sys.executable, "-c", program, self.addresses[1]], stdout=subprocess.PIPE, text=True)
        return float(process.communicate()[0])

    def cut(self, host):
        """Disconnects the host; its interface stays up, as if a cable were pulled at the switch."""
        quiet("ip", "-n", self.middle, "link", "set", f"to{host}", "down")

    def set_running(self, host, is_running):
        """Without IFF_RUNNING an interface is in the state shortly after it came up; frames pass."""
        state = ["mode", "default", "state", "up"] if is_running else ["mode", "dormant", "state", "dormant"]
        self._make("ip", "-n", self.names[host], "link", "set", "link0", *state)

    def reconnect(self, host):
        """Reconnects the host."""
        quiet("ip", "-n", self.middle, "link", "set", f"to{host}", "up")
