"""examples/ray on a Ray cluster of two nodes on this machine: ranks in actors train like ranks of a launcher.

usage: ray_test.py CONCORD SOURCE_FOLDER [unittest arguments]

Needs Ray, in this Python, in $CONCORD_PYTHON or in .venv/ray of the source folder; exits with 77 (skipped) without it.
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.append(os.path.join(sys.argv[2] if len(sys.argv) > 2 else ".", ".venv/ray"))
try:
    from ray.cluster_utils import Cluster
except ImportError as error:
    other = os.environ.get("CONCORD_PYTHON", "")
    if other and os.path.abspath(other) != os.path.abspath(sys.executable):
        os.execv(other, [other, "-B", *sys.argv])
    print(f"skipped: {error}; install ray, or set CONCORD_PYTHON to a Python that has it")
    sys.exit(77)

STEPS = 30
RANKS = 4
SLOW = {"CONCORD_LAYERS": "fault", "CONCORD_FAULT": "comm.all_reduce@*=delay:10ms"}  # no values change


class RayRuns(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # Two nodes with room for two ranks each, whatever this machine has.
        cls.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
        cls.addClassCleanup(cls.cluster.shutdown)
        cls.cluster.add_node(num_cpus=2)

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="concord-ray-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        rows = [{"input_ids": [(7 * row + 3 * column) % 96 for column in range(9)]} for row in range(32)]
        (self.folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.settings = ["--model", str(source / "tests/golden/hf/qwen2-tiny"), "--train_data", "data.jsonl", "--max_steps", str(STEPS),
                         "--per_device_train_batch_size", "1", "--learning_rate", "0.01", "--logging_steps", "1"]
        self.environment = {**os.environ, "CONCORD_PLATFORM": "cpu", "OMP_NUM_THREADS": "1", "RAY_ADDRESS": self.cluster.address,
                            "CONCORD_PLUGIN_PATH": str(concord.parent.parent / "lib"), "PYTHONPATH": os.pathsep.join(sys.path)}

    def start(self, *options, arguments=(), environment=()):
        # Ray's workers have the environment of their node, so what ranks need is in the command.
        slow = [f"{name}={value}" for name, value in dict(environment).items()]
        program = self.folder / "concord"
        keep = ["CONCORD_PLATFORM", "OMP_NUM_THREADS", "CONCORD_PLUGIN_PATH"]
        settings = " ".join([f"{name}='{self.environment[name]}'" for name in keep] + [f"'{each}'" for each in slow])
        program.write_text(f"#!/bin/sh\nexec env {settings} '{concord}' \"$@\"\n")
        program.chmod(0o755)
        self.log = self.folder / "log.txt"
        command = [sys.executable, "-B", str(source / "examples/ray/train.py"), "--ranks", str(RANKS), "--concord", str(program), *options, "--",
                   *self.settings, "--output_dir", str(self.folder / "out"), *arguments]
        with open(self.log, "wb") as log:
            process = subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=log, stderr=log)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def losses(self, folder="out"):
        path = self.folder / folder / "metrics.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []
        return [(row["step"], row["loss"]) for row in rows]

    def expected(self):
        """Returns the losses of the same job under Concord's own launcher."""
        subprocess.run([str(concord), "train", "--nproc", str(RANKS), *self.settings, "--output_dir", "expected"], cwd=self.folder,
                       env=self.environment, check=True, capture_output=True)
        return self.losses("expected")

    def wait_for_steps(self, process, count):
        deadline = time.monotonic() + 120  # reached only if the job is broken
        while len(self.losses()) < count:
            self.assertIsNone(process.poll(), self.log.read_text())
            self.assertLess(time.monotonic(), deadline, self.log.read_text())
            time.sleep(0.1)

    def ranks(self):
        """Returns {rank: (pid, LOCAL_RANK, LOCAL_WORLD_SIZE)} of the processes that train into this test's folder."""
        found = {}
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                command = (entry / "cmdline").read_bytes().split(b"\0")
                text = (entry / "environ").read_bytes().decode(errors="replace")
            except OSError:
                continue
            variables = dict(word.split("=", 1) for word in text.split("\0") if "=" in word)
            if command[0] == str(concord).encode() and str(self.folder / "out").encode() in command and "RANK" in variables:
                found[int(variables["RANK"])] = (int(entry.name), variables["LOCAL_RANK"], variables["LOCAL_WORLD_SIZE"])
        return found

    def test_a_lost_rank_is_started_again_and_the_losses_are_those_of_a_launcher(self):
        process = self.start("--max_restarts", "1", arguments=["--save_steps", "5"], environment=SLOW)
        self.wait_for_steps(process, 8)
        ranks = self.ranks()
        self.assertEqual([ranks[rank][1:] for rank in range(RANKS)], [("0", "2"), ("1", "2"), ("0", "2"), ("1", "2")])
        os.kill(ranks[3][0], signal.SIGKILL)
        self.assertEqual(process.wait(timeout=300), 0, self.log.read_text())
        self.assertIn("attempt 1 of 2 ended", self.log.read_text())
        self.assertEqual(self.losses(), self.expected())
        self.assertEqual(self.ranks(), {})

    def test_sigterm_saves_and_ends_with_143(self):
        process = self.start(environment=SLOW)
        self.wait_for_steps(process, 3)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=300), 143, self.log.read_text())
        self.assertEqual(len(list((self.folder / "out").glob("checkpoint-*"))), 1)
        self.assertEqual(self.ranks(), {})

    def test_wrong_usage_is_not_repeated(self):
        process = self.start("--max_restarts", "3", arguments=["--no_such_argument", "1"])
        self.assertEqual(process.wait(timeout=300), 2, self.log.read_text())
        self.assertNotIn("attempt 1", self.log.read_text())

    def test_a_program_that_is_not_there_is_an_error(self):
        process = self.start()
        (self.folder / "concord").unlink()
        self.assertEqual(process.wait(timeout=300), 1, self.log.read_text())
        self.assertIn("cannot be started", self.log.read_text())


if __name__ == "__main__":
    concord, source = (pathlib.Path(word).resolve() for word in sys.argv[1:3])
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
