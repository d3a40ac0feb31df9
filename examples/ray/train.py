#!/usr/bin/env python3
"""Trains with Concord on a Ray cluster: one actor per rank.

    python examples/ray/train.py --ranks 16 --gpus_per_rank 1 -- --config examples/qwen2.5-7b/16-devices.yaml
    python examples/ray/train.py --ranks 2 -- --config run.yaml            # on CPUs

Arguments after -- are those of `concord train`. The cluster is that of RAY_ADDRESS, or one that is started on this
machine. Every actor starts one process, which is a rank by RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR
and MASTER_PORT, as under torchrun. All files (program, models, data, output_dir) must have the same paths on every
machine.

The loss of a rank or a machine ends the attempt; --max_restarts restarts all ranks on the remaining machines, from the
latest checkpoint. SIGTERM and Ctrl-C stop the run, which saves everything. Exit codes: those of `concord train`.
"""
import argparse
import ctypes
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading

# Ray would show every actor only its own device, as number 0; a rank uses the device of its LOCAL_RANK (see
# visible_devices).
os.environ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"] = "1"
os.environ["RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES"] = "1"
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

PR_SET_PDEATHSIG = 1


@ray.remote(max_concurrency=2)  # stop is called while wait waits
class Rank:
    """One rank. Its process is killed with the actor."""

    def __init__(self):
        self.process = None

    def place(self):
        """Returns the location of this actor: (node, address, devices)."""
        return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address(), ray.get_gpu_ids()

    def free_port(self):
        # Stays reserved as long as this actor lives: the socket is bound but does not listen, so the job can.
        self.held = socket.socket()
        self.held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.held.bind(("", 0))
        return self.held.getsockname()[1]

    # PR_SET_PDEATHSIG kills the process when the thread that started it ends, so a thread waits for it.
    def start(self, command, folder, environment):
        started = threading.Event()

        def run():
            try:
                self.process = subprocess.Popen(command, cwd=folder, env={**os.environ, **environment},
                                                preexec_fn=lambda: ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL))
            finally:
                started.set()
            self.process.wait()

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()
        started.wait()
        if self.process is None:
            raise RuntimeError(f"{command[0]} cannot be started on {socket.gethostname()}")

    def wait(self):
        self.thread.join()
        code = self.process.returncode
        return code if code >= 0 else 128 - code

    def stop(self, number):
        if self.process.poll() is None:
            self.process.send_signal(number)


def visible_devices(devices):
    """Returns the devices of one machine's ranks, in the order of LOCAL_RANK; None without devices."""
    names = ",".join(str(device) for device in devices)
    return {"CUDA_VISIBLE_DEVICES": names, "ASCEND_RT_VISIBLE_DEVICES": names} if names else {}


def environments(places, port):
    """Returns one environment per actor, in the order of |places|. Ranks of a machine are consecutive; |port| is
    free on that of rank 0."""
    nodes = sorted({node for node, _, _ in places}, key=[node for node, _, _ in places].index)
    order = sorted(range(len(places)), key=lambda actor: (nodes.index(places[actor][0]), places[actor][2], actor))
    token = secrets.token_hex(16)  # keeps others out of the job's store
    result = {}
    for rank, actor in enumerate(order):
        local = [other for other in order if places[other][0] == places[actor][0]]
        result[actor] = {
            "RANK": str(rank), "WORLD_SIZE": str(len(places)), "LOCAL_RANK": str(local.index(actor)), "LOCAL_WORLD_SIZE": str(len(local)),
            "MASTER_ADDR": places[order[0]][1], "MASTER_PORT": str(port), "CONCORD_JOB_TOKEN": token,
            **visible_devices([device for other in local for device in places[other][2]])}
    return [result[actor] for actor in range(len(places))]


class Attempt:
    """The ranks of one attempt. All or none of them are placed: two jobs cannot wait for each other's devices."""

    def __init__(self, options):
        bundle = {"CPU": options.cpus_per_rank, "GPU": options.gpus_per_rank}
        self.group = placement_group([{name: count for name, count in bundle.items() if count}] * options.ranks, strategy="PACK")
        ray.get(self.group.ready())
        self.actors = [Rank.options(num_cpus=options.cpus_per_rank, num_gpus=options.gpus_per_rank,
                                    scheduling_strategy=PlacementGroupSchedulingStrategy(self.group, index)).remote()
                       for index in range(options.ranks)]

    def run(self, command, stopped):
        """Returns the exit code: 0, that of the first rank that failed, or 128 + |stopped|'s signal."""
        try:
            places = ray.get([actor.place.remote() for actor in self.actors])
            first = self.actors[0]  # on the first machine, like rank 0
            variables = environments(places, ray.get(first.free_port.remote()))
            ray.get([actor.start.remote(command, os.getcwd(), each) for actor, each in zip(self.actors, variables)])
            return self.wait(stopped)
        except ray.exceptions.RayActorError as error:
            print(f"ray: a rank's actor is lost: {error}", file=sys.stderr)
            return 1

    def wait(self, stopped):
        waiting = [actor.wait.remote() for actor in self.actors]
        told = False
        while waiting:
            ended, waiting = ray.wait(waiting, timeout=0.2)
            if stopped and not told:
                ray.get([actor.stop.remote(stopped[0]) for actor in self.actors])
                told = True
            for code in ray.get(ended):
                if code != 0 and not (stopped and code == 128 + stopped[0]):
                    return code  # the others wait for this rank: end() kills them
        return 128 + stopped[0] if stopped else 0

    def end(self):
        for actor in self.actors:
            ray.kill(actor)
        remove_placement_group(self.group)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--gpus_per_rank", type=float, default=0)
    parser.add_argument("--cpus_per_rank", type=float, default=1)
    parser.add_argument("--max_restarts", type=int, default=0)
    parser.add_argument("--concord", default="build/bin/concord", help="the program")
    parser.add_argument("arguments", nargs="*", help="of `concord train`, after --")
    return parser.parse_args()


def main():
    options = parse()
    stopped = []
    ray.init()
    for number in (signal.SIGTERM, signal.SIGINT):  # after Ray has set its own handlers
        signal.signal(number, lambda received, _: stopped.append(received))
    for attempt in range(options.max_restarts + 1):
        resumes = ["--resume_from_checkpoint", "true"] if attempt else []
        ranks = Attempt(options)
        try:
            code = ranks.run([os.path.abspath(options.concord), "train", *options.arguments, *resumes], stopped)
        finally:
            ranks.end()
        if code in (0, 2) or stopped:
            break
        print(f"ray: attempt {attempt + 1} of {options.max_restarts + 1} ended with exit code {code}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
