"""Ranks on several hosts that execute commands, line by line (host_rank.cpp, collectives_gloo.py)."""

import os
import subprocess


class Ranks:
    """Processes, distributed over the hosts in order, the same number on each."""

    def __init__(self, hosts, commands, with_sys=True):
        """|commands|: for each rank its command and additions to its environment."""
        self.processes = []
        for rank, (command, environment) in enumerate(commands):
            self.processes.append(hosts.start(
                rank * len(hosts.names) // len(commands), command, with_sys, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                env={**os.environ, "OMP_NUM_THREADS": "1", **environment}))

    @classmethod
    def joined(cls, hosts, program, plugin, count=4, **environment):
        """Returns the ranks of a communicator of the cpu platform, which have joined it."""
        ranks, answers = cls.join(hosts, program, plugin, count, **environment)
        assert answers == ["joined"] * count, answers
        return ranks

    @classmethod
    def join(cls, hosts, program, plugin, count=4, with_sys=True, **environment):
        """Like joined(), and returns the output of each."""
        variables = {"CONCORD_PLATFORM": plugin, "CONCORD_CPU_NETWORK": "always", "MASTER_ADDR": hosts.addresses[0],
                     "CONCORD_LOG": "warn", **environment}
        ranks = cls(hosts, [([os.path.abspath(program)], variables)] * count, with_sys)
        ranks.send(0, "id")
        number = ranks.receive(0)
        for rank in range(count):
            ranks.send(rank, f"join {count} {rank} {number}")
        return ranks, [ranks.receive(rank) for rank in range(count)]

    def send(self, rank, line):
        self.processes[rank].stdin.write(line + "\n")
        self.processes[rank].stdin.flush()

    def receive(self, rank):
        line = self.processes[rank].stdout.readline()
        return line.rstrip("\n") if line else f"ended with exit code {self.processes[rank].wait()}"

    def ask_all(self, line):
        for rank in range(len(self.processes)):
            self.send(rank, line)
        return [self.receive(rank) for rank in range(len(self.processes))]

    def end(self):
        """Returns their exit codes."""
        for process in self.processes:
            process.stdin.close()
        return [process.wait() for process in self.processes]
