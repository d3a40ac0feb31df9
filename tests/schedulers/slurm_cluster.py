"""A private Slurm cluster on this machine, in one folder: munged, slurmctld and several slurmd, with its own ports.

    with SlurmCluster(folder, nodes=2) as cluster:
        cluster.run("srun", "-N2", "hostname")

With hosts (tests/hosts/hosts.py) every node is in its own network namespace, and the first one has the controller and
runs the commands. All its processes are terminated with it: the daemons at the end of the `with` block, in any case,
and when this process is killed (the kernel then sends them SIGTERM); steps of jobs are found by SLURM_CONF in their
environment. Runs as any user, who is also Slurm's; several clusters can run at the same time. Missing programs raise
MissingProgram.
"""
import ctypes
import os
import pathlib
import pwd
import shutil
import signal
import socket
import subprocess
import time

from held_port import held_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "squeue", "scancel", "sinfo")
PR_SET_PDEATHSIG = 1


class MissingProgram(Exception):
    pass


# The nodes are named by their addresses, so that a rank finds the first one by its name, as on a real cluster. They
# have more processors and devices than the machine: jobs as large as the examples can be started.
CONFIG = """ClusterName=concord
SlurmctldHost={host}({subnet}.1)
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldDebug=verbose
SlurmdDebug=verbose
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
InactiveLimit=0
KillWait=60
MinJobAge=3600
JobRequeue=1
GresTypes=gpu
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName={subnet}.[1-{nodes}] NodeHostname={host} NodeAddr={subnet}.[1-{nodes}] Port=[{node_ports}] CPUs=64 Gres=gpu:2 State=UNKNOWN
PartitionName=batch Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=60 MaxTime=INFINITE State=UP
PartitionName=urgent Nodes=ALL PriorityTier=2 PreemptMode=OFF MaxTime=INFINITE State=UP
"""


def with_system_folders(environment):
    """Adds sbin, which has the daemons and is not on every user's PATH."""
    return {**environment, "PATH": environment.get("PATH", "") + ":/usr/sbin:/sbin"}


def dies_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class SlurmCluster:
    def __init__(self, folder, nodes, hosts=None):
        self.folder = pathlib.Path(folder)
        self.nodes = nodes
        self.hosts = hosts
        self.subnet = hosts.addresses[0].rsplit(".", 1)[0] if hosts else "127.0.0"
        self.held = [held_port() for _ in range(nodes + 1)]  # for slurmctld and each slurmd
        self.daemons = []
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
        self.environment = with_system_folders({**inherited, "SLURM_CONF": str(self.folder / "slurm.conf")})

    def __enter__(self):
        missing = [name for name in PROGRAMS if shutil.which(name, path=self.environment["PATH"]) is None]
        if missing:
            raise MissingProgram(f"no {', '.join(missing)}; install slurmd, slurmctld, slurm-client and munge")
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def start(self):
        self.folder.chmod(0o755)  # munged refuses a socket that others could not reach
        (self.folder / "state").mkdir()
        first, *others = [str(each.getsockname()[1]) for each in self.held]
        config = CONFIG.format(host=socket.gethostname().split(".")[0], user=pwd.getpwuid(os.getuid()).pw_name, folder=self.folder, nodes=self.nodes,
                               subnet=self.subnet, controller_port=first, node_ports=",".join(others))
        (self.folder / "slurm.conf").write_text(config)
        if self.hosts:  # "ip netns exec" hides /sys/fs/cgroup, where Slurm would look which version there is; none is used
            (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (self.folder / "gres.conf").write_text("AutoDetect=off\nName=gpu File=/dev/null,/dev/zero\n")
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        self.daemon("munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket", f"--key-file={key}",
                    f"--pid-file={self.folder}/munge.pid", f"--seed-file={self.folder}/munge.seed")
        self.wait_until(lambda: (self.folder / "munge.socket").exists(), "munged has no socket")
        self.daemon("slurmctld", "-D")
        for node in range(1, self.nodes + 1):
            (self.folder / f"spool-{self.subnet}.{node}").mkdir()
            self.daemon("slurmd", "-D", "-N", f"{self.subnet}.{node}", node=node - 1)
        self.wait_until(lambda: self.run("sinfo", "-h", "-p", "batch", "-o", "%T %D", check=False).stdout.split() ==
                        ["idle", str(self.nodes)], "the nodes do not become idle")

    def on(self, node, command):
        return ["ip", "netns", "exec", self.hosts.names[node], *command] if self.hosts else [*command]

    def daemon(self, *command, node=0):
        log = open(self.folder / f"daemon-{len(self.daemons)}-{command[0]}.txt", "wb")
        self.daemons.append(subprocess.Popen(self.on(node, command), env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                             preexec_fn=dies_with_parent, start_new_session=True))

    def run(self, *command, check=True):
        done = subprocess.run(self.on(0, command), env=self.environment, capture_output=True, text=True, timeout=120)
        if check and done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return done

    def wait_until(self, is_true, complaint, patience=60):
        """Polls. |patience| only ends the wait for a broken cluster."""
        deadline = time.monotonic() + patience
        while not is_true():
            for daemon in self.daemons:
                if daemon.poll() is not None:
                    raise RuntimeError(f"{' '.join(daemon.args)} ended with {daemon.returncode}\n{self.logs()}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{complaint} after {patience} s\n{self.logs()}")
            time.sleep(0.1)

    def job(self, number):
        """Returns Slurm's values of a job, by name: JobState, ExitCode, Restarts, ..."""
        words = self.run("scontrol", "--oneliner", "show", "job", str(number)).stdout.split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def logs(self):
        parts = []
        for path in sorted(self.folder.glob("*.log")) + sorted(self.folder.glob("daemon-*.txt")):
            parts.append(f"--- {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-25:]))
        return "\n".join(parts)

    def processes(self):
        """Returns the processes of this cluster, including those that its daemons have started and left."""
        found = []
        mark = f"SLURM_CONF={self.folder}/slurm.conf".encode()
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0") and int(entry.name) != os.getpid():
                    found.append(int(entry.name))
            except OSError:  # it has exited, or belongs to another user
                continue
        return found

    def stop(self):
        for held in self.held:
            held.close()
        for sent in (signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + 5
            for pid in self.processes() if sent == signal.SIGKILL else [each.pid for each in self.daemons]:
                try:
                    os.kill(pid, sent)
                except ProcessLookupError:
                    continue
            while time.monotonic() < deadline:
                for daemon in self.daemons:
                    daemon.poll()
                if not self.processes():
                    return
                time.sleep(0.05)
        raise RuntimeError(f"processes of the cluster are left: {self.processes()}")
