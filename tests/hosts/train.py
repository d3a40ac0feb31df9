"""Training over two hosts (network namespaces), two ranks each: the same bits as on one host, and the right blame.

    train.py CONCORD MODEL [trajectories|torchrun|mpirun|srun|impaired|killed|cut|recovers|shrinks|leaderless]...

Trajectories: a layout on two hosts, started by `concord launch --nnodes 2`, has the losses and gradient norms of
the same layout on one host, bit for bit. Torchrun, mpirun, srun: the same for one layout, started by torchrun (of
CONCORD_PYTHON), by one mpirun, and, with one rank per host, by srun on two nodes of a private Slurm cluster. Impaired: the same over a link with
latency and loss. Killed, cut: a host's processes are killed, or its link is cut, in the middle of training; every rank
ends, and says which rank is gone. How long that took is printed. Recovers: with --max_restarts the job goes on, with the
same bits. Shrinks: the second host is cut off for good, and the first one goes on alone, with the same samples; nothing
is left running on either. Leaderless: three hosts elect their leader in an etcd with a member on each, and that of the leader
is cut off; it kills its ranks, another one leads, and when the link is back the first one joins it; all have the bits of one
host.
"""

import collections
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from etcd_cluster import EtcdCluster
from hosts import INSIDE, ONLY_ROOT, Hosts, is_running, skip, skip_without_engine

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "schedulers"))
from slurm_cluster import MissingProgram, SlurmCluster  # noqa: E402

LAYOUTS = {
    "DP 2 x TP 2": ["--tensor_model_parallel_size", "2"],
    "PP 2 x TP 2": ["--tensor_model_parallel_size", "2", "--pipeline_model_parallel_size", "2"],
    "CP 4": ["--context_parallel_size", "4"],
}
SEED = 20261116
LEADS = "leads the job from now on"


def write_rows(path, count):
    numbers = random.Random(SEED)
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(count):
            file.write(json.dumps({"input_ids": [numbers.randrange(1, 200) for _ in range(32)]}) + "\n")


class Runs:
    def __init__(self, concord, model, folder):
        self.concord, self.model, self.folder = os.path.abspath(concord), os.path.abspath(model), folder
        self.rows = os.path.join(folder, "rows.jsonl")
        write_rows(self.rows, 64)
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1", "CONCORD_PLATFORM": "cpu", "CONCORD_LOG": "warn",
                            "CONCORD_JOB_TOKEN": "the token of the tests of many hosts"}

    def args(self, out, layout, steps):
        return ["train", "--model", self.model, "--train_data", self.rows, "--output_dir", os.path.join(self.folder, out),
                "--max_steps", str(steps), "--global_batch_size", "4", "--per_device_train_batch_size", "1",
                "--seq_length", "32", "--logging_steps", "1", "--shuffle", "false", *(layout if "--save_steps" in layout else
                                                                                     ["--save_strategy", "no", *layout])]

    def alone(self, out, layout, steps, ranks=4):
        args = [self.concord, "launch", "--nproc", str(ranks), "--", *self.args(out, layout, steps)]
        done = subprocess.run(args, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False)
        assert done.returncode == 0, f"on one host: exit code {done.returncode}\n{done.stdout}"

    def launchers(self, hosts, out, layout, steps, port, more=()):
        def args(node):
            return [self.concord, "launch", "--nproc", "2", "--nnodes", "2", "--node_rank", str(node), "--master_addr",
                    hosts.addresses[0], "--master_port", str(port), *more, "--", *self.args(out, layout, steps)]
        return self.start(hosts, out, args)

    def torchruns(self, hosts, out, layout, steps, port):
        def args(node):
            return [os.environ.get("CONCORD_PYTHON", "python3"), "-m", "torch.distributed.run", "--nnodes", "2",
                    "--node-rank", str(node), "--nproc-per-node", "2", "--master-addr", hosts.addresses[0],
                    "--master-port", str(port), "--no-python", *self.recorded(out), *self.args(out, layout, steps)]
        return self.start(hosts, out, args)

    def mpirun(self, hosts, out, layout, steps, port):
        """Starts one mpirun on the first host; it starts its daemon on the other one as it would by ssh."""
        agent = os.path.join(self.folder, "agent")
        with open(agent, "w", encoding="utf-8") as file:
            file.write(f'#!/bin/sh\nshift\nexec ip netns exec {hosts.names[1]} sh -c "$*"\n')
        os.chmod(agent, 0o755)
        args = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", "4",
                 "--host", ",".join(f"{address}:2" for address in hosts.addresses), "--mca", "plm_rsh_agent", agent,
                 "--mca", "oob_tcp_if_include", "link0"]
        variables = {"MASTER_ADDR": hosts.addresses[0], "MASTER_PORT": str(port)}
        for name in [*variables, *(name for name in self.environment if name.startswith(("CONCORD_", "OMP_")))]:
            args += ["-x", name]
        return self.start_on(hosts, out, 0, [*args, *self.recorded(out), *self.args(out, layout, steps)], variables)

    def srun(self, cluster, hosts, out, layout, steps):
        args = ["srun", "-N2", "--ntasks-per-node=1", "--export=ALL"]
        return self.start_on(hosts, out, 0, [*args, *self.recorded(out), *self.args(out, layout, steps)],
                             {"SLURM_CONF": cluster.environment["SLURM_CONF"]})

    def recorded(self, out):
        """Returns a command that starts a rank and records where it runs: a new file with its namespace."""
        # No "$$": torchrun makes one "$" of it.
        note = f'readlink /proc/self/ns/net > "$(mktemp {os.path.join(self.folder, out)}-rank-XXXXXX)"'
        return ["sh", "-c", f'{note}; exec "$0" "$@"', self.concord]

    def ranks_on_hosts(self, out):
        """Returns how many ranks have run on each host."""
        names = [name for name in os.listdir(self.folder) if name.startswith(f"{out}-rank-")]
        found = collections.Counter()
        for name in names:
            with open(os.path.join(self.folder, name), encoding="ascii") as file:
                found[file.read()] += 1
        return sorted(found.values())

    def start(self, hosts, out, args_of):
        """Starts one launcher per host."""
        return [self.start_on(hosts, out, node, args_of(node)) for node in range(2)]

    def start_on(self, hosts, out, node, args, variables=None):
        log = open(os.path.join(self.folder, f"{out}-{node}.log"), "w+", encoding="utf-8")
        process = hosts.start(node, args, env={**self.environment, **(variables or {})}, stdout=log, stderr=log,
                              cwd=self.folder)
        return process, log

    def metrics(self, out):
        path = os.path.join(self.folder, out, "metrics.jsonl")
        if not os.path.exists(path):
            return []
        with open(path, encoding="utf-8") as file:
            rows = [json.loads(line) for line in file if line.endswith("\n")]
        found = [(row["step"], row["loss"], row["grad_norm"]) for row in rows if "loss" in row and "grad_norm" in row]
        return sorted({step[0]: step for step in found}.values())  # the last of steps that were repeated


def text_of(log):
    log.flush()
    log.seek(0)
    return log.read()


def check_trajectories(runs, hosts):
    for number, (name, layout) in enumerate(LAYOUTS.items()):
        runs.alone(f"one{number}", layout, 6)
        for process, log in runs.launchers(hosts, f"two{number}", layout, 6, 4400 + number):
            assert process.wait() == 0, f"{name} on two hosts: exit code {process.returncode}\n{text_of(log)}"
        one, two = runs.metrics(f"one{number}"), runs.metrics(f"two{number}")
        assert len(one) == 6, f"{name}: {len(one)} steps were logged"
        assert one == two, f"{name}: on one host\n{one}\non two hosts\n{two}"
        print(f"{name}: 6 steps on two hosts have the bits of one host; last loss {two[-1][1]}")


def check_started_by(name, runs, start, ranks_per_host=2, steps=3):
    """One layout, started by |start|(output folder, layout, steps), is bitwise identical to one host."""
    layout = LAYOUTS["DP 2 x TP 2"] if ranks_per_host == 2 else []
    runs.alone("one", layout, steps, 2 * ranks_per_host)
    for process, log in start("two", layout, steps):
        assert process.wait() == 0, f"{name}: exit code {process.returncode}\n{text_of(log)}"
    placed = runs.ranks_on_hosts("two")
    assert placed == [ranks_per_host] * 2, f"{name}: ranks on each host {placed}"
    one, two = runs.metrics("one"), runs.metrics("two")
    assert len(one) == steps and one == two, f"{name}: on one host\n{one}\non two hosts\n{two}"
    print(f"started by {name}: {steps} steps on two hosts have the bits of one host; last loss {two[-1][1]}")


def check_torchrun(runs, hosts):
    if subprocess.run([os.environ.get("CONCORD_PYTHON", "python3"), "-c", "import torch"], stderr=subprocess.DEVNULL,
                      check=False).returncode != 0:
        skip("torchrun needs a Python with torch in CONCORD_PYTHON")
    check_started_by("torchrun", runs, lambda *job: runs.torchruns(hosts, *job, 4420))


def check_mpirun(runs, hosts):
    if shutil.which("mpirun") is None:
        skip("there is no mpirun; install openmpi-bin")
    check_started_by("mpirun", runs, lambda *job: [runs.mpirun(hosts, *job, 4421)])


def check_srun(runs, hosts):
    if os.environ.get(INSIDE) == ONLY_ROOT:
        skip("Slurm's daemons set their groups, which a user namespace of one user does not allow; run this check as root, or "
             "install uidmap and add the user to /etc/subuid and /etc/subgid")
    folder = os.path.join(runs.folder, "slurm")
    os.mkdir(folder)
    try:
        with SlurmCluster(folder, nodes=2, hosts=hosts) as cluster:
            check_started_by("srun", runs, lambda *job: [runs.srun(cluster, hosts, *job)], ranks_per_host=1, steps=2)
    except MissingProgram as error:
        skip(str(error))


def check_impaired(runs, hosts):
    layout, delay_ms, loss_percent = LAYOUTS["DP 2 x TP 2"], 1, 1
    runs.alone("one", layout, 3)
    by = hosts.impair(delay_ms, loss_percent)
    round_trip = hosts.round_trip()
    assert round_trip >= 2e-3 * delay_ms, f"the link has no latency: {1e3 * round_trip} ms"
    for process, log in runs.launchers(hosts, "two", layout, 3, 4440):
        assert process.wait() == 0, f"impaired link: exit code {process.returncode}\n{text_of(log)}"
    lost = hosts.lost_frames()
    assert lost > 0, "the link has lost nothing"
    one, two = runs.metrics("one"), runs.metrics("two")
    assert len(one) == 3 and one == two, f"impaired link: on one host\n{one}\non two hosts\n{two}"
    print(f"a link with {delay_ms} ms and {loss_percent} % loss, by {by}: {1e3 * round_trip:.1f} ms there and back, {lost} frames "
          "lost; 3 steps have the bits of one host")


def ranks_of(launcher):
    with open(f"/proc/{launcher}/task/{launcher}/children", encoding="ascii") as file:
        return [int(pid) for pid in file.read().split()]


def check_fault(runs, hosts, out, port, what, inject, blame, silent_host):
    """|silent_host|: a host whose processes are all killed, so that none of them can report anything."""
    started = runs.launchers(hosts, out, LAYOUTS["DP 2 x TP 2"], 100000, port)
    while len(runs.metrics(out)) < 3:
        for process, log in started:
            assert process.poll() is None, f"{what}: ended before the fault\n{text_of(log)}"
        time.sleep(0.05)
    start = time.monotonic()
    inject(started)
    for host, (process, log) in enumerate(started):
        code = process.wait()
        if host == silent_host:
            continue
        took = time.monotonic() - start
        said = text_of(log)
        assert code != 0, f"{what}: host {host} ended as if nothing had happened\n{said}"
        assert any(f"rank {rank} " in said for rank in blame[host]), f"{what}: host {host} blames nobody\n{said}"
        print(f"{what}: host {host} ended after {took:.1f} s with exit code {code}")


def check_killed(runs, hosts):
    def kill_second_host(started):
        launcher = started[1][0].pid
        for pid in [launcher, *ranks_of(launcher)]:
            os.kill(pid, signal.SIGKILL)

    check_fault(runs, hosts, "killed", 4410, "processes killed", kill_second_host, {0: [2, 3]}, 1)


def check_cut(runs, hosts):
    check_fault(runs, hosts, "cut", 4411, "link cut", lambda _: hosts.cut(1), {0: [2, 3], 1: [0, 1]}, None)


def check_recovers(runs, hosts):
    layout = [*LAYOUTS["DP 2 x TP 2"], "--save_steps", "5"]
    steps = 30
    runs.alone("one-recovers", layout, steps)
    started = runs.launchers(hosts, "two-recovers", layout, steps, 4430, ["--max_restarts", "3"])
    while len(runs.metrics("two-recovers")) < 8:
        for process, log in started:
            assert process.poll() is None, f"recovery: ended before the fault\n{text_of(log)}"
        time.sleep(0.02)
    for pid in ranks_of(started[1][0].pid):
        if "concord-guard" not in name_of(pid):
            os.kill(pid, signal.SIGKILL)
    for process, log in started:
        assert process.wait() == 0, f"recovery: exit code {process.returncode}\n{text_of(log)}"
    said = text_of(started[0][1])
    assert "restart 1 of 3" in said, f"recovery: no restart\n{said}"
    one, two = runs.metrics("one-recovers"), runs.metrics("two-recovers")
    assert len(one) == steps and one == two, f"recovery: on one host\n{one}\non two hosts\n{two}"
    print(f"ranks of a host killed: the job went on, and {steps} steps have the bits of one host without faults")


def check_shrinks(runs, hosts):
    layout = [*LAYOUTS["DP 2 x TP 2"], "--save_steps", "5"]
    steps = 12
    runs.alone("one-shrinks", layout, steps)
    started = []
    for node in range(2):
        args = [runs.concord, *runs.args("two-shrinks", layout, steps), "--nproc", "2", "--nnodes", "2", "--node_rank",
                 str(node), "--master_addr", hosts.addresses[0], "--master_port", "4440", "--max_restarts", "2",
                 "--allow_fewer_ranks", "--rejoin_timeout", "1"]
        started.append(runs.start_on(hosts, "two-shrinks", node, args, {"CONCORD_FAULTS": "delay:0@8+900"}))
    while len(runs.metrics("two-shrinks")) < 7:
        for process, log in started:
            assert process.poll() is None, f"shrinking: ended before the fault\n{text_of(log)}"
        time.sleep(0.02)
    ranks = [pid for process, _ in started for pid in ranks_of(process.pid)]
    start = time.monotonic()
    hosts.cut(1)
    codes = [process.wait() for process, _ in started]
    said = [text_of(log) for _, log in started]
    assert codes == [0, 75], f"shrinking: exit codes {codes}\n{said[0]}\n{said[1]}"
    assert "with 2 of 4 ranks" in said[0], f"shrinking: with all ranks\n{said[0]}"
    left = [pid for pid in ranks if os.path.exists(f"/proc/{pid}")]
    assert not left, f"shrinking: processes {left} are left"
    one, two = runs.metrics("one-shrinks"), runs.metrics("two-shrinks")
    assert len(one) == steps and len(two) == steps, f"shrinking: {len(one)} and {len(two)} steps were logged"
    for (_, expected, _), (step, loss, _) in zip(one, two):  # sums are taken in another order
        assert abs(expected - loss) < 1e-4, f"shrinking: the loss of step {step} is {loss}; on one host it is {expected}"
    print(f"link cut for good: the first host went on with 2 of 4 ranks, and ended {time.monotonic() - start:.1f} s later")


def wait_for_text(log, text, started):
    while text not in (said := text_of(log)):
        assert all(process.poll() is None for process, _ in started), f"ended without '{text}'\n{said}"
        time.sleep(0.05)


def check_leaderless(runs, hosts):
    layout = ["--save_steps", "5"]
    steps = 12
    args = runs.args("one-leaderless", layout, steps)
    args[args.index("--global_batch_size") + 1] = "3"
    done = subprocess.run([runs.concord, *args, "--nproc", "3"], env=runs.environment, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, f"on one host: exit code {done.returncode}\n{done.stdout}"
    etcd = EtcdCluster(runs.folder, hosts)
    started = []
    for node in range(3):
        args = runs.args("leaderless", layout, steps)
        args[args.index("--global_batch_size") + 1] = "3"
        args = [runs.concord, *args, "--nproc", "1", "--nnodes", "3", "--node_rank", str(node), "--rdzv_backend", "etcd",
                 "--rdzv_endpoint", etcd.endpoints, "--rdzv_id", "leaderless", "--rdzv_conf", "lease_ttl=3",
                 "--max_restarts", "2", "--rejoin_timeout", "120"]
        variables = {"CONCORD_FAULTS": "delay:0@8+900", "CONCORD_RANK_START": "exec"}  # the only children are ranks
        started.append(runs.start_on(hosts, "leaderless", node, args, variables))
        wait_for_text(started[0][1], LEADS, started)  # before the others are started
    while len(runs.metrics("leaderless")) < 7:
        for process, log in started:
            assert process.poll() is None, f"leaderless: ended before the fault\n{text_of(log)}"
        time.sleep(0.02)
    ranks = [pid for pid in ranks_of(started[0][0].pid) if "concord-guard" not in name_of(pid)]
    start = time.monotonic()
    hosts.cut(0)
    while LEADS not in text_of(started[1][1]) + text_of(started[2][1]):
        assert all(process.poll() is None for process, _ in started), "a launcher has exited"
        time.sleep(0.05)
    elected = time.monotonic() - start
    wait_for_text(started[0][1], "this launcher no longer leads the job", started)
    while any(is_running(pid) for pid in ranks):
        time.sleep(0.05)
    killed = time.monotonic() - start
    hosts.reconnect(0)
    for node, (process, log) in enumerate(started):
        assert process.wait() == 0, f"leaderless: host {node}: exit code {process.returncode}\n{text_of(log)}"
    said = [text_of(log) for _, log in started]
    assert "concord launch: continuing (attempt 2)" in said[1] + said[2], f"leaderless: no restart\n{said[1]}\n{said[2]}"
    assert "(attempt" not in said[0], f"leaderless: two have led\n{said[0]}"
    one, three = runs.metrics("one-leaderless"), runs.metrics("leaderless")
    assert len(one) == steps and one == three, f"leaderless: on one host\n{one}\non three hosts\n{three}"
    print(f"the leader's link cut: another launcher led after {elected:.1f} s, its ranks had exited after {killed:.1f} s; when the "
          f"link was back it joined the others, and {steps} steps have the bits of one host")


def name_of(pid):
    with open(f"/proc/{pid}/comm", encoding="ascii") as file:
        return file.read()


def main(arguments):
    concord, model, *chosen = arguments
    checks = {"trajectories": check_trajectories, "torchrun": check_torchrun, "mpirun": check_mpirun, "srun": check_srun,
              "impaired": check_impaired, "killed": check_killed, "cut": check_cut, "recovers": check_recovers, "shrinks": check_shrinks,
              "leaderless": check_leaderless}
    skip_without_engine(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(concord))), "lib", "plugin"))
    for name in chosen or checks:
        with tempfile.TemporaryDirectory() as folder, Hosts(3 if name == "leaderless" else 2) as hosts:  # some cut a link
            checks[name](Runs(concord, model, folder), hosts)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
