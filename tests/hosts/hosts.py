"""Hosts for tests: network namespaces of this machine, joined by a bridge, each with an address of its own."""

import os
import signal
import subprocess
import sys

SKIP = 77  # what ctest counts as skipped


def quiet(*words):
    return subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)


def skip(why):
    print(f"skipped: {why}")
    sys.exit(SKIP)


def skip_without_engine(plugin):
    """Ends the program as skipped where the cpu plugin's messages between hosts were not built."""
    if not os.path.exists(os.path.join(os.path.dirname(os.path.abspath(plugin)), "libconcordnet_ucx.so")):
        skip("built without UCX (libucx-dev)")


class Hosts:
    """|count| hosts; used with `with`. Where namespaces cannot be made, the program ends as skipped and says why."""

    def __init__(self, count):
        # Names that no other test on this machine has; 15 characters are the most for an interface.
        self.names = [f"c{os.getpid()}h{i}" for i in range(count)]
        self.addresses = [f"10.{os.getpid() // 250 % 250}.{os.getpid() % 250}.{i + 1}" for i in range(count)]
        self.middle = f"c{os.getpid()}m"
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
                self._make("ip", "-n", name, "addr", "add", f"{self.addresses[i]}/24", "dev", "link0")
                self._make("ip", "-n", name, "link", "set", "lo", "up")
                self._make("ip", "-n", name, "link", "set", "link0", "up")
        except (OSError, RuntimeError) as error:
            self.__exit__()
            skip(f"network namespaces cannot be made here: {error}")
        return self

    def __exit__(self, *_):
        for process in self.started:
            if process.poll() is None:
                process.kill()  # a launcher, whose ranks end with it
                process.wait()
        for name in [*self.names, self.middle]:
            quiet("ip", "netns", "del", name)

    @staticmethod
    def _make(*words):
        result = quiet(*words)
        if result.returncode != 0:
            raise RuntimeError(f"{' '.join(words)}: {result.stderr.strip()}")

    def start(self, host, words, **more):
        process = subprocess.Popen(["ip", "netns", "exec", self.names[host], *words], **more)
        self.started.append(process)
        return process

    def listening_ports(self, host):
        """The TCP ports on which this host's processes listen, of any of its addresses."""
        shown = subprocess.run(["ip", "netns", "exec", self.names[host], "cat", "/proc/net/tcp", "/proc/net/tcp6"],
                               stdout=subprocess.PIPE, text=True, check=False).stdout
        rows = [line.split() for line in shown.splitlines()]
        return sorted({int(row[1].rsplit(":", 1)[1], 16) for row in rows if len(row) > 3 and row[3] == "0A"})

    def cut(self, host):
        """Takes the host off the network; its interface stays up, as when a cable is pulled at the switch."""
        quiet("ip", "-n", self.middle, "link", "set", f"to{host}", "down")
