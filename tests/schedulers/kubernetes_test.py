"""examples/kubernetes: valid by the API's schemas, consistent with the program, and their commands run.

usage: kubernetes_test.py CONCORD SOURCE_FOLDER [unittest arguments]

Needs kubernetes-validate (schemas of the API, offline), in this Python or in $CONCORD_PYTHON; exits with 77 (skipped)
without it.
"""
import copy
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

try:
    import kubernetes_validate
    import jsonschema
    import yaml
except ImportError as error:
    other = os.environ.get("CONCORD_PYTHON", "")
    if other and os.path.abspath(other) != os.path.abspath(sys.executable):
        os.execv(other, [other, "-B", *sys.argv])
    print(f"skipped: {error}; install kubernetes-validate, or set CONCORD_PYTHON to a Python that has it")
    sys.exit(77)

from held_port import held_port

OLDEST = "1.31"  # first version with a stable podFailurePolicy
# PyTorchJob is a custom resource, so its schema is not among the API's. This is what its definition in Kubeflow's
# training operator (kubeflow.org_pytorchjobs.yaml, v1) allows around the pod templates, which are checked by the API's
# own schema.
REPLICA = {"type": "object", "additionalProperties": False, "required": ["replicas", "restartPolicy", "template"], "properties": {
    "replicas": {"type": "integer", "minimum": 1}, "template": {"type": "object"},
    "restartPolicy": {"enum": ["Always", "OnFailure", "Never", "ExitCode"]}}}
PYTORCH_JOB = {"type": "object", "additionalProperties": False, "required": ["apiVersion", "kind", "metadata", "spec"], "properties": {
    "apiVersion": {"const": "kubeflow.org/v1"}, "kind": {"const": "PyTorchJob"}, "metadata": {"type": "object"},
    "spec": {"type": "object", "additionalProperties": False, "required": ["pytorchReplicaSpecs"], "properties": {
        "nprocPerNode": {"type": "string"}, "elasticPolicy": {"type": "object"},
        "runPolicy": {"type": "object", "additionalProperties": False, "properties": {
            "activeDeadlineSeconds": {"type": "integer"}, "backoffLimit": {"type": "integer", "minimum": 0},
            "cleanPodPolicy": {"enum": ["All", "Running", "None"]}, "managedBy": {"type": "string"},
            "schedulingPolicy": {"type": "object"}, "suspend": {"type": "boolean"}, "ttlSecondsAfterFinished": {"type": "integer"}}},
        "pytorchReplicaSpecs": {"type": "object", "additionalProperties": False, "required": ["Master"],
                                "properties": {"Master": REPLICA, "Worker": REPLICA}}}}}}


def replicas_of(manifest):
    return manifest["spec"]["pytorchReplicaSpecs"]


def validate(manifest):
    """Raises jsonschema.ValidationError. Strict: a name that the API does not know is an error too."""
    for version in (OLDEST, kubernetes_validate.latest_version()):
        if manifest.get("kind") != "PyTorchJob":
            kubernetes_validate.validate(manifest, version, strict=True)
            continue
        jsonschema.validate(manifest, PYTORCH_JOB)
        for replica in replicas_of(manifest).values():
            template = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}, "template": replica["template"]}
            kubernetes_validate.validate(template, version, strict=True)


def documents(name):
    return list(yaml.safe_load_all((source / "examples/kubernetes" / name).read_text()))


def job():
    return next(each for each in documents("train.yaml") if each["kind"] == "Job")


def pod_specs():
    return [job()["spec"]["template"]["spec"]] + [each["template"]["spec"] for each in replicas_of(documents("pytorchjob.yaml")[0]).values()]


def arguments_of(container):
    return dict(word.lstrip("-").split("=", 1) for word in container["args"])


def documented_exit_codes():
    """Returns {code: what to do} from the table in docs/faults.md; 128 + signal as SIGTERM's."""
    rows = re.findall(r"^\| (\d+|128 \+ signal) \|[^|]*\|([^|]*)\|$", (source / "docs/faults.md").read_text(), re.MULTILINE)
    return {143 if code.startswith("128") else int(code): advice.strip() for code, advice in rows}


def action_for(policy, code):
    """Returns what Kubernetes does with a pod whose container exited with |code|, without a condition of the pod;
    the default is Count."""
    for rule in policy["rules"]:
        codes = rule.get("onExitCodes")
        if codes and (code in codes["values"]) == (codes["operator"] == "In"):
            return rule["action"]
    return "Count"


class Manifests(unittest.TestCase):
    def test_are_valid_in_the_oldest_and_the_newest_api(self):
        kinds = []
        for path in sorted((source / "examples/kubernetes").glob("*.yaml")):
            for manifest in documents(path.name):
                validate(manifest)
                kinds.append(manifest["kind"])
        self.assertEqual(sorted(kinds), ["Job", "PyTorchJob", "Service"])

    def test_broken_ones_are_found(self):
        def breaks(manifest, change):
            broken = copy.deepcopy(manifest)
            change(broken)
            with self.assertRaises(jsonschema.ValidationError):
                validate(broken)
        pod = lambda manifest: manifest["spec"]["template"]["spec"]
        breaks(job(), lambda it: it["spec"].update(completionmode="Indexed"))
        breaks(job(), lambda it: it["spec"].update(completions="two"))
        breaks(job(), lambda it: pod(it)["containers"][0].update(args="--nproc=8"))
        breaks(job(), lambda it: pod(it)["containers"][0]["livenessProbe"].update(exec=["true"]))
        breaks(job(), lambda it: it["spec"]["podFailurePolicy"]["rules"][1]["onExitCodes"].pop("operator"))
        kubeflow = documents("pytorchjob.yaml")[0]
        breaks(kubeflow, lambda it: it["spec"].update(replicas=2))
        breaks(kubeflow, lambda it: replicas_of(it)["Worker"].update(restartPolicy="Sometimes"))
        breaks(kubeflow, lambda it: replicas_of(it)["Worker"]["template"]["spec"].update(terminationGracePeriod=150))

    def test_what_follows_an_exit_code_is_what_faults_md_says(self):
        policy = job()["spec"]["podFailurePolicy"]
        self.assertEqual(job()["spec"]["template"]["spec"]["restartPolicy"], "Never")  # the API asks for it with a policy
        codes = documented_exit_codes()
        self.assertEqual(sorted(codes), [0, 1, 2, 71, 75, 143])
        for code, advice in codes.items():
            expected = {"do not requeue": ["FailJob"], "": ["Count"]}.get(advice, ["Ignore", "Count"])
            self.assertIn(action_for(policy, code), expected, f"exit code {code}: {advice}")
        for rule in policy["rules"]:
            self.assertIn(rule.get("onExitCodes", {}).get("containerName"), (None, "train"))

    def test_pods_have_the_time_to_save(self):
        for pod in pod_specs():
            for container in pod["containers"]:
                self.assertGreaterEqual(pod["terminationGracePeriodSeconds"], int(arguments_of(container)["exit_signal_grace"]))

    def test_the_numbers_of_pods_of_the_pytorchjob_agree(self):
        replicas = replicas_of(documents("pytorchjob.yaml")[0]).values()
        for replica in replicas:
            container = replica["template"]["spec"]["containers"][0]
            self.assertEqual(int(arguments_of(container)["nnodes"]), sum(each["replicas"] for each in replicas))
            self.assertEqual(container["name"], "pytorch")


class Pods(unittest.TestCase):
    """Runs commands of the manifests like the kubelet, as processes of this machine: a tiny model, one process per
    pod."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="concord-kubernetes-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.out = self.folder / "out"
        self.started = []
        self.addCleanup(self.kill_all)
        rows = ['{"input_ids": [%s]}\n' % ",".join(str((5 * row + column) % 96) for column in range(9)) for row in range(32)]
        (self.folder / "data.jsonl").write_text("".join(rows))
        (self.folder / "run.yaml").write_text(
            f"model: {source}/tests/golden/hf/qwen2-tiny\ntrain_data: {self.folder}/data.jsonl\nmax_steps: 100000\n"
            "per_device_train_batch_size: 1\nlogging_steps: 1\n")
        held = held_port()
        self.addCleanup(held.close)
        self.port = held.getsockname()[1]

    def kill_all(self):
        for process in self.started:
            process.kill()
            process.wait()
            process.stderr.close()

    def here(self, word, given):
        """Returns |word| of a manifest as expanded by the kubelet, with the parts of the cluster replaced."""
        word = re.sub(r"\$\((\w+)\)", lambda match: given.get(match[1], match[0]), word)
        replaced = {"--nproc": "1", "--master_addr": "127.0.0.1", "--master_port": str(self.port), "--config": str(self.folder / "run.yaml"),
                    "--output_dir": str(self.out)}
        name, _, _ = word.partition("=")
        return f"{name}={replaced[name]}" if name in replaced else word

    def start(self, container, given):
        words = [str(concord) if word == "concord" else self.here(word, given) for word in container["command"] + container["args"]]
        environment = {**os.environ, **given, "CONCORD_PLATFORM": "cpu", "CONCORD_JOB_TOKEN": "0123456789abcdef0123456789abcdef",
                       "OMP_NUM_THREADS": "1", "CONCORD_PLUGIN_PATH": str(concord.parent.parent / "lib")}
        self.started.append(subprocess.Popen(words, env=environment, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))
        return self.started[-1]

    def probe(self, container, name):
        folder = arguments_of(container)["output_dir"]
        words = [word.replace(folder, str(self.out)) for word in container[name]["exec"]["command"]]
        self.assertIn(str(self.out), " ".join(words))
        return subprocess.run(words, stderr=subprocess.DEVNULL).returncode

    def wait_for_steps(self):
        deadline = time.monotonic() + 120  # reached only if the job is broken
        path = self.out / "metrics.jsonl"
        while not path.exists() or len(path.read_text().splitlines()) < 3:
            for process in self.started:
                self.assertIsNone(process.poll(), process.stderr.read().decode() if process.poll() is not None else "")
            self.assertLess(time.monotonic(), deadline, "no step is made")
            time.sleep(0.1)

    def preempt(self, process):
        """One pod gets SIGTERM: both save and exit with 143."""
        process.send_signal(signal.SIGTERM)
        codes = [each.wait(timeout=150) for each in self.started]
        self.assertEqual(codes, [143, 143], [each.stderr.read().decode() for each in self.started])
        self.assertEqual(len(list(self.out.glob("checkpoint-*"))), 1)

    def test_of_the_indexed_job_train_probe_and_save_when_preempted(self):
        container = job()["spec"]["template"]["spec"]["containers"][0]
        self.assertNotEqual(self.probe(container, "startupProbe"), 0)
        self.assertNotEqual(self.probe(container, "livenessProbe"), 0)
        pods = [self.start(container, {"JOB_COMPLETION_INDEX": str(index)}) for index in range(2)]
        self.wait_for_steps()
        self.assertEqual(self.probe(container, "startupProbe"), 0)
        self.assertEqual(self.probe(container, "livenessProbe"), 0)
        self.preempt(pods[1])
        an_hour_ago = time.time() - 3600
        os.utime(self.out / "metrics.jsonl", (an_hour_ago, an_hour_ago))
        self.assertNotEqual(self.probe(container, "livenessProbe"), 0)

    def test_of_the_pytorchjob_train_and_save_when_preempted(self):
        for rank, replica in enumerate(replicas_of(documents("pytorchjob.yaml")[0]).values()):
            self.start(replica["template"]["spec"]["containers"][0],
                       {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.port)})
        self.wait_for_steps()
        self.preempt(self.started[1])


if __name__ == "__main__":
    concord, source = (pathlib.Path(word).resolve() for word in sys.argv[1:3])
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
