"""examples/slurm on a private Slurm cluster of two nodes: jobs that finish, fail, are stopped and resume.

usage: slurm_test.py CONCORD SOURCE_FOLDER [unittest arguments]

CONCORD is build/bin/concord. Exits with 77 (skipped) if Slurm is not installed. The cluster and its files are removed
at the end, also after a failure or SIGTERM.
"""
import json
import os
import pathlib
import signal
import sys
import tempfile
import unittest

from slurm_cluster import MissingProgram, SlurmCluster

STEPS = 40
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT")
# Every reduction takes a little longer, so that a run can be interrupted between two steps of its choice. No values
# change.
SLOW = {"CONCORD_LAYERS": "fault", "CONCORD_FAULT": "comm.all_reduce@*=delay:10ms"}


class Jobs(unittest.TestCase):
    """Jobs of one cluster. Their folder looks like a checkout: build/bin/concord, a configuration, data."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="concord-slurm-jobs-")
        self.addCleanup(folder.cleanup)
        self.work = pathlib.Path(folder.name)
        (self.work / "build").symlink_to(concord.parent.parent)
        rows = [{"input_ids": [(7 * row + 3 * column) % 96 for column in range(9)]} for row in range(32)]
        (self.work / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        settings = {"model": str(source / "tests/golden/hf/qwen2-tiny"), "train_data": "data.jsonl", "max_steps": STEPS,
                    "per_device_train_batch_size": 1, "learning_rate": 0.01, "logging_steps": 1}
        (self.work / "run.yaml").write_text("".join(f"{name}: {value}\n" for name, value in settings.items()))

    def submit(self, *arguments, environment=None):
        """Submits the unchanged example, with one task per node instead of eight."""
        settings = {"CONCORD_PLATFORM": "cpu", **(environment or {})}
        command = ["sbatch", "--parsable", f"--chdir={self.work}", "--ntasks-per-node=1", "--gpus-per-node=1", "--cpus-per-task=1",
                   "--export=" + ",".join(["ALL"] + [f"{name}={value}" for name, value in settings.items()]),
                   str(source / "examples/slurm/train.sbatch"), "run.yaml", *arguments]
        return cluster.run(*command).stdout.strip()

    def log(self, job):
        path = self.work / f"concord-{job}.log"
        return path.read_text(errors="replace") if path.exists() else "no log"

    def losses(self, job):
        path = self.work / f"out/job-{job}/metrics.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []
        return [(row["step"], row["loss"]) for row in rows]

    def wait_for_step(self, job, step):
        def is_there():
            self.assertNotIn(cluster.job(job)["JobState"], ENDED, self.log(job))
            return len(self.losses(job)) >= step
        cluster.wait_until(is_there, f"job {job} does not reach step {step}: {cluster.job(job)}\n{self.log(job)}")
        return len(self.losses(job))

    def wait_for_end(self, job):
        cluster.wait_until(lambda: cluster.job(job)["JobState"] in ENDED, f"job {job} does not end: {cluster.job(job)}\n{self.log(job)}")
        return cluster.job(job)

    def wait_for_requeue(self, job, times):
        def is_requeued():
            found = cluster.job(job)
            return int(found["Restarts"]) >= times and found["JobState"] != "COMPLETING"
        cluster.wait_until(is_requeued, f"job {job} is not requeued: {cluster.job(job)}\n{self.log(job)}")

    def checkpoints(self, job):
        return sorted(int(path.name.split("-")[1]) for path in (self.work / f"out/job-{job}").glob("checkpoint-*[0-9]"))

    def test_a_job_that_was_stopped_in_every_way_ends_as_one_that_was_not(self):
        calm = self.submit()
        self.assertEqual(self.wait_for_end(calm)["ExitCode"], "0:0", self.log(calm))
        self.assertEqual([step for step, _ in self.losses(calm)], list(range(1, STEPS + 1)))

        job = self.submit(environment=SLOW)
        interruptions = [
            # As --signal does before the time limit: the processes, and not the script, which requeues the job itself.
            lambda: cluster.run("scancel", "--signal=TERM", job),
            lambda: cluster.run("srun", "--partition=urgent", "--nodes=2", "--exclusive", "true"),  # preempts it
            lambda: cluster.run("scontrol", "requeue", job),
        ]
        reached = 0
        for times, interrupt in enumerate(interruptions, 1):
            reached = self.wait_for_step(job, reached + 3)
            interrupt()
            self.wait_for_requeue(job, times)
            self.assertGreaterEqual(self.checkpoints(job)[-1], reached, self.log(job))
        found = self.wait_for_end(job)
        self.assertEqual((found["ExitCode"], found["Restarts"]), ("0:0", "3"), self.log(job))
        self.assertEqual(self.losses(job), self.losses(calm), self.log(job))  # exactly equal
        self.assertEqual(self.log(job).count("resumes    out/job-"), 3, self.log(job))

    def test_a_cancelled_job_saves_and_does_not_come_back(self):
        job = self.submit(environment=SLOW)
        reached = self.wait_for_step(job, 3)
        cluster.run("scancel", job)
        found = self.wait_for_end(job)
        cluster.wait_until(lambda: cluster.run("squeue", "-h", "-j", job, check=False).stdout == "", f"job {job} stays in the queue")
        self.assertEqual((found["JobState"], found["Restarts"]), ("CANCELLED", "0"), self.log(job))
        self.assertEqual(found["ExitCode"], "143:0", self.log(job))
        self.assertGreaterEqual(self.checkpoints(job)[-1], reached, self.log(job))

    def test_failures_end_with_their_documented_exit_codes_and_are_not_requeued(self):
        wrong = self.submit("--no_such_argument", "1")
        broken = self.submit(environment={"CONCORD_LAYERS": "fault", "CONCORD_FAULT": "comm.all_reduce@9=INTERNAL"})
        for job, code in ((wrong, "2:0"), (broken, "1:0")):
            found = self.wait_for_end(job)
            self.assertEqual((found["JobState"], found["ExitCode"], found["Restarts"]), ("FAILED", code, "0"), self.log(job))


def main():
    global cluster, concord, source
    concord, source = (pathlib.Path(word).resolve() for word in sys.argv[1:3])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # leaves the with block below
    os.environ.setdefault("CONCORD_PLUGIN_PATH", str(concord.parent.parent / "lib"))
    try:
        with tempfile.TemporaryDirectory(prefix="concord-slurm-") as folder, SlurmCluster(folder, nodes=2) as cluster:
            unittest.main(argv=sys.argv[:1] + sys.argv[3:])
    except MissingProgram as error:
        print(f"skipped: {error}")
        sys.exit(77)


if __name__ == "__main__":
    main()
