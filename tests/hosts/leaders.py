"""Launchers on three hosts (network namespaces) that elect their leader in an etcd with a member on each.

    leaders.py CONCORD [failover|outage|secured]...

The ranks are shell scripts that record their attempt. Failover: a member of etcd is killed, which changes nothing; then
the launcher that leads is killed, and another one continues the job, with the first one when it is started again.
Outage: all of etcd is killed, the leader kills the ranks when its lease expires, and the job continues when etcd is
back. Secured: etcd has TLS and passwords. No rank of an attempt starts while one of an earlier attempt runs, and every
launcher exits with code 0.
"""

import os
import signal
import sys
import tempfile
import time

from etcd_cluster import EtcdCluster
from hosts import Hosts, is_running

LEADS = "leads the job from now on"
# Seconds. The others elect a new leader of etcd within two seconds if the killed member led it; meanwhile no lease can
# be kept alive.
LEASE = 6
RANK = """
while read attempt rank pid; do
  [ "$attempt" -lt "$TORCHELASTIC_RESTART_COUNT" ] && grep -q rank.sh "/proc/$pid/cmdline" && echo "$pid" >> overlap
done < ranks
echo "$TORCHELASTIC_RESTART_COUNT $RANK $$" >> ranks
until [ -e done ]; do sleep 0.1; done
"""


class Job:
    def __init__(self, concord, folder, hosts, password=None):
        self.concord, self.folder, self.hosts = os.path.abspath(concord), folder, hosts
        self.etcd = EtcdCluster(folder, hosts, password)
        self.user = f"root:{password}" if password else ""
        self.write("ranks", "")
        self.write("rank.sh", RANK)
        self.launchers = [self.start(0)]
        self.wait(lambda: LEADS in self.log_of(0), "machine 0 leads")
        self.launchers += [self.start(host) for host in (1, 2)]
        self.wait(lambda: self.ranks(0) == [0, 1, 2], "all ranks run")

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)

    def start(self, host, user=None):
        conf = f"lease_ttl={LEASE}" + (f",cacert={self.etcd.certificate}" if self.user else "")
        words = [self.concord, "launch", "--nproc", "1", "--nnodes", "3", "--node_rank", str(host), "--max_restarts",
                 "3", "--rejoin_timeout", "120", "--rdzv_backend", "etcd", "--rdzv_endpoint", self.etcd.endpoints,
                 "--rdzv_id", "job", "--rdzv_conf", conf, "--", "sh", "rank.sh"]
        log = open(self.path(f"launcher-{host}.log"), "a", encoding="utf-8")
        return self.hosts.start(host, words, cwd=self.folder, stdout=log, stderr=log,
                                env={**os.environ, "CONCORD_JOB_TOKEN": "the token of the tests of many hosts",
                                     "ETCDCTL_USER": user or self.user})

    def log_of(self, host):
        with open(self.path(f"launcher-{host}.log"), encoding="utf-8") as file:
            return file.read()

    def started(self):
        with open(self.path("ranks"), encoding="ascii") as file:
            return [tuple(int(word) for word in line.split()) for line in file.read().splitlines()]

    def ranks(self, attempt):
        return sorted(rank for number, rank, _ in self.started() if number == attempt)

    def running(self):
        return [pid for _, _, pid in self.started() if is_running(pid)]

    def wait(self, condition, what):
        end = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < end, f"not seen: {what}\n{self.started()}\n" + "\n".join(
                self.log_of(host) for host in range(len(self.launchers)))
            time.sleep(0.05)

    def finish(self, attempt):
        self.wait(lambda: self.ranks(attempt) == [0, 1, 2], f"all ranks run in attempt {attempt}")
        assert len(self.started()) == 3 * (attempt + 1), f"ranks were started twice: {self.started()}"
        self.write("done", "")
        codes = [launcher.wait() for launcher in self.launchers]
        logs = "\n".join(self.log_of(host) for host in range(3))
        assert codes == [0, 0, 0], f"exit codes {codes}\n{logs}"
        assert not os.path.exists(self.path("overlap")), f"ranks of two attempts ran at the same time\n{logs}"


def check_failover(job):
    job.etcd.kill(2)
    time.sleep(2 * LEASE)
    assert len(job.started()) == 3 and LEADS not in job.log_of(1) + job.log_of(2), "a member was missed"
    job.launchers[0].send_signal(signal.SIGKILL)
    job.launchers[0].wait()
    job.wait(lambda: LEADS in job.log_of(1) + job.log_of(2), "another launcher leads")
    job.launchers[0] = job.start(0)
    job.finish(1)
    print("a member of etcd and the launcher that led were killed: another launcher continued the job")


def check_outage(job):
    for host in range(3):
        job.etcd.kill(host)
    job.wait(lambda: "no longer leads the job" in job.log_of(0), "the leader has stepped down")
    job.wait(lambda: not job.running(), "the ranks have exited")
    for host in range(3):
        job.etcd.restart(host)
    job.finish(1)
    print("all of etcd was killed: the ranks were stopped, and the job continued when it was back")


def check_secured(job):
    stranger = job.start(2, user="root:wrong")
    job.wait(lambda: "does not authenticate the user 'root'" in job.log_of(2), "a wrong password is reported")
    stranger.kill()
    job.finish(0)
    print("launchers have elected their leader in an etcd with TLS and passwords")


def main(arguments):
    concord, *chosen = arguments
    checks = {"failover": check_failover, "outage": check_outage, "secured": check_secured}
    for name in chosen or checks:
        with tempfile.TemporaryDirectory() as folder, Hosts(3) as hosts:
            checks[name](Job(concord, folder, hosts, "secret" if name == "secured" else None))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
