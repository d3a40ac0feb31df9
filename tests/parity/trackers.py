"""The reports of `concord train --report_to wandb mlflow prometheus otel`, compared with the run's own log.

trackers.py PROGRAM MODEL

W&B's own library writes the run (offline), and its own protocol buffers read it back; a small server implements
MLflow's REST API and checks its limits; prometheus_client parses what is scraped during the run; OpenTelemetry's own
protocol buffers parse what a collector receives. Then failures: no server, a server that rejects or never replies, a
helper process that dies, missing libraries, hostile clients. Exit code 77: wandb, prometheus_client or
opentelemetry-proto is missing, nothing was compared.
"""

import http.server
import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import preloaded

try:
    from google.protobuf import json_format
    from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
    from prometheus_client.parser import text_string_to_metric_families
    from wandb.proto import wandb_internal_pb2
except ImportError as missing:
    print(f"skipped: {missing}; install wandb, prometheus_client and opentelemetry-proto for this Python")
    sys.exit(77)


class Server(http.server.ThreadingHTTPServer):
    """MLflow's tracking server, reduced to what a run needs. |mode|: answer, refuse (metrics), hang."""

    def __init__(self, mode="answer"):
        super().__init__(("127.0.0.1", 0), Handler)
        self.mode, self.runs, self.experiments, self.largest = mode, {}, {}, {"metrics": 0, "params": 0}
        self.daemon_threads = True
        self.ended = threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, path, body):
        if path.startswith("experiments/get-by-name"):
            name = path.rsplit("=", 1)[1]
            if name not in self.experiments:
                return 404, {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "none"}
            return 200, {"experiment": {"experiment_id": self.experiments[name]}}
        if path == "experiments/create":
            self.experiments[body["name"]] = "17"
            return 200, {"experiment_id": "17"}
        if path == "runs/create":
            run = f"run{len(self.runs)}"
            self.runs[run] = {"created": body, "metrics": [], "params": {}, "status": ["RUNNING"]}
            return 200, {"run": {"info": {"run_id": run}}}
        run = self.runs[body["run_id"]]
        if path == "runs/update":
            run["status"].append(body["status"])
        elif path == "runs/log-batch":
            for kind in "metrics", "params":
                self.largest[kind] = max(self.largest[kind], len(body.get(kind, [])))
            if self.mode == "refuse" and body.get("metrics"):
                return 400, {"error_code": "INVALID_PARAMETER_VALUE", "message": "no more"}
            run["metrics"] += body.get("metrics", [])
            run["params"] |= {each["key"]: each["value"] for each in body.get("params", [])}
        else:
            return 404, {"error_code": "ENDPOINT_NOT_FOUND"}
        return 200, {}


class Handler(http.server.BaseHTTPRequestHandler):
    def reply(self, body):
        if self.server.mode == "hang":
            self.server.ended.wait()
            return
        code, answer = self.server.answer(self.path.removeprefix("/api/2.0/mlflow/"), body)
        data = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_POST(self):
        self.reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def do_GET(self):
        self.reply(None)

    def log_message(self, *_):
        pass


class Collector(http.server.ThreadingHTTPServer):
    """An OpenTelemetry collector for OTLP/HTTP. |codes|: its first responses; after that it rejects |rejected|
    points."""

    def __init__(self, codes=(), rejected=0):
        super().__init__(("127.0.0.1", 0), CollectorHandler)
        self.codes, self.rejected, self.requests = list(codes), rejected, []
        self.daemon_threads = True
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def points(self):
        """Returns [(name, time in ns, value, run)], and checks that every request is valid."""
        found = []
        for path, headers, body in self.requests:
            assert path == "/v1/metrics" and headers["Content-Type"] == "application/json", (path, headers)
            request = json_format.Parse(body, metrics_service_pb2.ExportMetricsServiceRequest())
            [resource] = request.resource_metrics
            [scope] = resource.scope_metrics
            self.resource = {each.key: each.value.string_value for each in resource.resource.attributes}
            for metric in scope.metrics:
                assert metric.WhichOneof("data") == "gauge" and metric.gauge.data_points, metric
                for point in metric.gauge.data_points:
                    [run] = point.attributes
                    assert run.key == "run" and point.WhichOneof("value") == "as_double", point
                    found.append((metric.name, point.time_unix_nano, point.as_double, run.value.string_value))
        return found


class CollectorHandler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        code = self.server.codes.pop(0) if self.server.codes else 200
        if code == 200:
            self.server.requests.append((self.path, self.headers, body))
        partial = {"partialSuccess": {"rejectedDataPoints": str(self.server.rejected), "errorMessage": "too old"}}
        data = json.dumps(partial if self.server.rejected else {}).encode() if code == 200 else b"not now"
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


def words(program, model, folder, *more):
    return [program, "train", "--model", model, "--train_data", str(folder / "text.txt"), "--tokenizer", "byte", "--seq_length", "8",
            "--per_device_train_batch_size", "1", "--logging_steps", "1", "--save_strategy", "no", "--output_dir",
            str(folder / "out"), "--overwrite_output_dir", *map(str, more)]


def environment(folder, **more):
    """Returns the environment without any settings of the services."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "MLFLOW_", "OTEL_"))}
    return kept | {"CONCORD_PYTHON": sys.executable, "HOME": str(folder), "OMP_NUM_THREADS": "1"} | more


def train(command, env, code=0):
    done = preloaded.run(command, env)
    if done.returncode != code:
        raise AssertionError(f"exit code {done.returncode}, not {code}: {' '.join(command)}\n{done.stdout}\n{done.stderr}")
    return done.stdout + done.stderr


def logged(folder):
    """Returns {(step, name): value} from the files that the run has written, with HF's names."""
    values = {}
    for file, renamed in ("metrics.jsonl", {"tokens": "num_input_tokens_seen"}), ("eval_metrics.jsonl", {}):
        path = folder / "out" / file
        for line in path.read_text().splitlines() if path.exists() else []:
            entry = json.loads(line)
            for name, value in entry.items():
                if name not in ("step", "time", "seconds", "non_finite", "flops") and value is not None:
                    values[entry["step"], renamed.get(name, name)] = value
    return values


def compare(name, found, wanted):
    missing = [key for key in wanted if key not in found]
    other = [(key, found[key], value) for key, value in wanted.items() if key in found and found[key] != value]
    assert not missing and not other, f"{name}: missing {missing[:5]}, differing (key, reported, logged) {other[:5]}"


def wandb_records(path):
    """Records of the offline format: LevelDB's log, 32 KiB blocks of (crc u32, length u16, kind u8, bytes)."""
    data, at, parts = path.read_bytes(), 7, []
    assert data[:4] == b":W&B", data[:8]
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = int.from_bytes(data[at + 4:at + 6], "little"), data[at + 6]
        parts.append(data[at + 7:at + 7 + length])
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(b"".join(parts))
            parts = []
            yield record


def wandb_run(folder):
    """{(step, name): value}, config and exit code of the only run."""
    [file] = (folder / "out" / "wandb").glob("offline-run-*/*.wandb")
    values, config, code, name = {}, {}, None, None
    for record in wandb_records(file):
        kind = record.WhichOneof("record_type")
        if kind == "history":
            items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            step = items.pop("train/global_step")
            for key, value in items.items():
                part, _, metric = key.partition("/")
                assert not metric.startswith("eval_"), key
                if part in ("train", "eval"):
                    values[step, metric if part == "train" else "eval_" + metric] = value
        elif kind == "run":
            config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
            name = record.run.display_name
        elif kind == "exit":
            code = record.exit.exit_code
    return values, config, code, name


def check_reported(program, model, folder):
    """All services receive what the run logs; a resumed run continues the run at MLflow."""
    server = Server()
    env = environment(folder, WANDB_MODE="offline", MLFLOW_TRACKING_URI=server.url, MLFLOW_EXPERIMENT_NAME="tiny")
    command = words(program, model, folder, "--report_to", "wandb,mlflow", "--run_name", "a run", "--max_steps", 6, "--eval_data",
                    folder / "text.txt", "--eval_steps", 3, "--save_strategy", "steps", "--save_steps", 4)
    text = train(command, env)
    wanted = logged(folder)
    assert (6, "eval_loss") in wanted and (1, "grad_norm") in wanted, wanted
    reported, config, code, name = wandb_run(folder)
    compare("W&B", reported, wanted)
    assert code == 0 and name == "a run" and config["max_steps"] == "6", (code, name, config)
    assert "wandb sync" in text and f"{server.url}/#/experiments/17/runs/run0" in text, text
    run = server.runs["run0"]
    compare("MLflow", {(each["step"], each["key"]): each["value"] for each in run["metrics"]}, wanted)
    assert run["status"] == ["RUNNING", "FINISHED"] and run["params"]["max_steps"] == "6", run
    assert run["created"]["run_name"] == "a run" and run["created"]["experiment_id"] == "17", run["created"]
    assert server.largest["params"] == 100 and server.largest["metrics"] <= 1000, server.largest
    lines = (folder / "out" / "metrics.jsonl").read_text().splitlines()
    assert all(abs(each["timestamp"] / 1000 - json.loads(lines[each["step"] - 1])["time"]) < 0.002
               for each in run["metrics"] if each["key"] == "loss")
    command.remove("--overwrite_output_dir")
    shutil.rmtree(folder / "out" / "checkpoint-6")
    command[command.index("--report_to"):command.index("--run_name")] = ["--report_to", "mlflow"]
    train([*command, "--resume_from_checkpoint", str(folder / "out" / "checkpoint-4")], env)
    assert len(server.runs) == 1 and run["status"][2:] == ["RUNNING", "FINISHED"], (server.runs.keys(), run["status"])
    assert [each["step"] for each in run["metrics"] if each["key"] == "loss"] == [1, 2, 3, 4, 5, 6, 5, 6]


def check_collected(program, model, folder):
    """An OpenTelemetry collector receives what the run logs, also a loss that is not finite; rejected values are
    counted."""
    collector = Collector()
    env = environment(folder, OTEL_EXPORTER_OTLP_ENDPOINT=collector.url + "/", OTEL_SERVICE_NAME="tiny",
                      OTEL_EXPORTER_OTLP_HEADERS="x-team=a%20b, x-key=c",
                      OTEL_RESOURCE_ATTRIBUTES="deployment.environment=test,service.name=other")
    command = words(program, model, folder, "--report_to", "otel", "--run_name", "a run", "--max_steps", 3, "--eval_data",
                    folder / "text.txt", "--eval_steps", 3)
    text = train(command, env)
    points = collector.points()
    assert collector.resource == {"service.name": "tiny", "deployment.environment": "test"}, collector.resource
    assert all(headers["x-team"] == "a b" and headers["x-key"] == "c" for _, headers, _ in collector.requests)
    assert {run for *_, run in points} == {"a run"} and f"{collector.url}/v1/metrics" in text, text
    steps = {at: int(value) for name, at, value, _ in points if name == "concord.global_step"}
    compare("OpenTelemetry", {(steps[at], name.removeprefix("concord.")): value for name, at, value, _ in points}, logged(folder))
    times = [json.loads(line)["time"] for line in (folder / "out" / "metrics.jsonl").read_text().splitlines()]
    assert all(any(abs(at / 1e9 - time) < 0.002 for time in times) for name, at, *_ in points if name == "concord.loss")
    collector = Collector()
    env["OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"] = collector.url + "/v1/metrics"
    train(words(program, model, folder, "--report_to", "otel", "--max_steps", 3, "--check_for_nan_in_loss_and_grad", "false",
                "--learning_rate", 1e30, "--lr_scheduler_type", "constant", "--max_grad_norm", 0, "--logging_nan_inf_filter",
                "false"), env)
    losses = [value for name, _, value, _ in collector.points() if name == "concord.loss"]
    assert len(losses) == 3 and not math.isfinite(losses[-1]), losses
    command = words(program, model, folder, "--report_to", "otel", "--max_steps", 1)
    text = train(command, environment(folder, OTEL_EXPORTER_OTLP_ENDPOINT=Collector(rejected=2).url))
    assert "note: otel: the collector rejects 2 of" in text and "2 values could not be reported" in text, text
    again = Collector(codes=[503])
    text = train(command, environment(folder, OTEL_EXPORTER_OTLP_ENDPOINT=again.url))
    assert again.points() and "503 not now" in text and "the server answers again" in text, text
    text = train(command, environment(folder, OTEL_EXPORTER_OTLP_ENDPOINT=Collector(codes=[400]).url))
    assert "note: otel: the server rejects" in text and "values could not be reported" in text, text
    for name, value, words_of_it in (("OTEL_EXPORTER_OTLP_ENDPOINT", "localhost", "takes OTLP over HTTP"),
                                     ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "only http/json is supported"),
                                     ("OTEL_RESOURCE_ATTRIBUTES", "a", "key=value,key=value is expected"),
                                     ("OTEL_EXPORTER_OTLP_TIMEOUT", "1 s", "milliseconds")):
        assert words_of_it in train(command, environment(folder, **{name: value}), 2), name


def check_nan(program, model, folder):
    """A loss that is not finite arrives as such."""
    server = Server()
    env = environment(folder, MLFLOW_TRACKING_URI=server.url)
    train(words(program, model, folder, "--report_to", "mlflow", "--max_steps", 3, "--check_for_nan_in_loss_and_grad", "false",
                "--learning_rate", 1e30, "--lr_scheduler_type", "constant", "--max_grad_norm", 0, "--logging_nan_inf_filter",
                "false"), env)
    losses = [each["value"] for each in server.runs["run0"]["metrics"] if each["key"] == "loss"]
    assert len(losses) == 3 and losses[-1] in ("NaN", "Infinity"), losses


def check_failures(program, model, folder):
    """Training succeeds whatever the service does, and the summary counts the missing values."""
    command = words(program, model, folder, "--report_to", "mlflow", "--max_steps", 3)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        absent = f"http://127.0.0.1:{unused.getsockname()[1]}"
        text = train(command, environment(folder, MLFLOW_TRACKING_URI=absent))
    count = int(re.search(r"(\d+) values could not be reported", text)[1])
    assert count == len([key for key in logged(folder)]), (count, logged(folder))
    assert text.count("note: mlflow: " + absent + " cannot be used") == 1, text
    hanging = Server("hang")
    text = train(command, environment(folder, MLFLOW_TRACKING_URI=hanging.url, MLFLOW_HTTP_REQUEST_TIMEOUT="0.2"))
    assert f"{count} values could not be reported" in text, text
    hanging.ended.set()
    refusing = Server("refuse")
    text = train(command, environment(folder, MLFLOW_TRACKING_URI=refusing.url))
    assert f"{count} values could not be reported" in text and "no more" in text, text
    assert refusing.runs["run0"]["status"][-1] == "FINISHED"
    dying = script(folder, "dying", "echo '{\"ready\": true}'; read line; exit 1")
    text = train(command, environment(folder, CONCORD_PYTHON=dying, MLFLOW_TRACKING_URI=absent))
    assert "note: mlflow: its process has exited" in text and "its process exited early" in text, text
    bare = script(folder, "bare", f"exec {sys.executable} -S \"$@\"")
    failing = words(program, model, folder, "--report_to", "wandb", "--max_steps", 3)
    assert "pip install wandb" in train(failing, environment(folder, CONCORD_PYTHON=bare), 2)
    assert "WANDB_MODE=offline" in train(failing, environment(folder), 2)
    assert "set it to the address" in train(command, environment(folder), 2)
    assert "wandb, mlflow, prometheus, otel" in train(words(program, model, folder, "--report_to", "comet_ml"), environment(folder), 2)


def script(folder, name, text):
    path = folder / name
    path.write_text("#!/bin/sh\n" + text + "\n")
    path.chmod(0o755)
    return str(path)


def scraped(address):
    with urllib.request.urlopen(address) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4"), answer.headers
        return {sample.name: (sample.value, sample.labels) for family in text_string_to_metric_families(answer.read().decode())
                for sample in family.samples}


def check_prometheus(program, model, folder):
    """Scraped during a run, while other clients misbehave."""
    with socket.socket() as held:  # it does not listen, so the run can, and no other program gets the port
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        command = words(program, model, folder, "--report_to", "prometheus", "--prometheus_port", port)
        check_scraped([*command, "--max_steps", str(10**6), "--run_name", 'a "run"\\'], folder, port)
        held.listen()
        assert "choose another port" in train(command, environment(folder), 2)


def check_scraped(command, folder, port):
    run = subprocess.Popen(command, env=environment(folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    strangers, values = [], {}
    try:
        while run.poll() is None and values.get("concord_global_step", (0,))[0] < 5:
            try:
                values = scraped(f"http://127.0.0.1:{port}/metrics")
            except (ConnectionError, urllib.error.URLError):
                time.sleep(0.05)
                continue
            if len(strangers) < 20:
                strangers.append(socket.create_connection(("127.0.0.1", port)))
                strangers[-1].sendall(os.urandom(500) if len(strangers) % 2 else b"GET /metrics HTTP/1.1\r\nX")
    finally:
        run.send_signal(signal.SIGTERM)
        text = run.communicate()[0]
    assert run.returncode == 143, (run.returncode, text)
    assert f"note: prometheus: metrics at http://127.0.0.1:{port}/metrics" in text, text
    step = int(values["concord_global_step"][0])
    wanted = {name: value for (at, name), value in logged(folder).items() if at == step}
    found = {name.removeprefix("concord_"): value for name, (value, _) in values.items()}
    compare("Prometheus", found, wanted)
    assert found["max_steps"] == 10**6 and not math.isnan(found["loss"])
    assert all(labels == {"run": 'a "run"\\'} for _, labels in values.values()), values


def main():
    program, model = sys.argv[1:]
    for check in check_reported, check_collected, check_nan, check_failures, check_prometheus:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 4)
            check(program, model, folder)
        print(f"{check.__name__}: {check.__doc__}")


if __name__ == "__main__":
    main()
