"""Reports a run to Weights & Biases, MLflow or an OpenTelemetry collector for Concord, without blocking or ending the
training.

usage: python3 -c SCRIPT wandb|mlflow|otel

Standard input has one JSON object per line, from the training process:
  {"begin": {"name", "folder", "first_step", "config": {name: text}}}     once
  {"log": {name: number}, "step": n, "time": seconds}                     Hugging Face's names: loss, eval_loss, ...
  {"finish": true}                                                       its end without it: the run has failed
Standard output has, one per line: {"ready": true} or {"error": text} first, {"note": text} at any time, and
{"done": {"place": text, "lost": n}} after finish. The exit code has no meaning.
"""
import sys

sys.path[:] = [folder for folder in sys.path if folder]  # the working folder holds data, not modules

import base64
import getpass
import json
import math
import os
import queue
import re
import signal
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

LINES_AHEAD = 1000  # read and not yet reported; more wait in the training process, which counts what it drops


def say(stream, **message):
    stream.write(json.dumps(message).encode() + b"\n")
    stream.flush()


class CannotStart(Exception):
    pass


class RunId:
    """The id of the run at the service, kept in its folder so that a resumed run continues it."""

    def __init__(self, folder, service, first_step):
        self.path = os.path.join(folder, f"{service}_run_id")
        self.value = ""
        if first_step > 0 and os.path.isfile(self.path):
            with open(self.path, encoding="utf-8") as file:
                self.value = file.read(200).strip()

    def keep(self, value):
        self.value = value
        with open(self.path, "w", encoding="utf-8") as file:
            file.write(value + "\n")


# ---------------------------------------------------------------------------------------------------- Weights & Biases


def grouped(name):
    """Like transformers' rewrite_logs: train/loss, eval/loss, test/loss."""
    for part in "eval", "test":
        if name.startswith(part + "_"):
            return f"{part}/{name[len(part) + 1:]}"
    return "train/" + name


class Wandb:
    def __init__(self):
        try:
            import wandb
        except ImportError as error:
            raise CannotStart(f"{sys.executable} has no module wandb ({error}); install it (pip install wandb), or set "
                              "CONCORD_PYTHON to a Python that has it")
        self.wandb, self.run, self.lost = wandb, None, 0
        mode = os.environ.get("WANDB_MODE", "online")
        if mode not in ("offline", "disabled", "dryrun") and not self.has_key():
            raise CannotStart("there is no API key; run `wandb login`, set WANDB_API_KEY, or set WANDB_MODE=offline to write "
                              "the run to output_dir/wandb, for `wandb sync`")

    def has_key(self):
        if os.environ.get("WANDB_API_KEY"):
            return True
        try:
            return bool(self.wandb.Api(timeout=5).api_key)
        except Exception:  # wandb has its own exceptions for it, and no stable name for them
            return False

    def begin(self, given):
        run_id = RunId(given["folder"], "wandb", given["first_step"])
        settings = self.wandb.Settings(silent=True, console="off")
        self.run = self.wandb.init(project=os.environ.get("WANDB_PROJECT", "concord"), name=given["name"], dir=given["folder"],
                                   config=given["config"], id=run_id.value or None, resume="allow" if run_id.value else None,
                                   settings=settings)
        run_id.keep(self.run.id)
        self.run.define_metric("train/global_step")
        self.run.define_metric("*", step_metric="train/global_step", step_sync=True)

    def log(self, lines):
        for line in lines:
            if self.run is None:
                self.lost += len(line["log"])
                continue
            values = {grouped(name): value for name, value in line["log"].items()}
            self.run.log({**values, "train/global_step": line["step"]})

    def finish(self, failed):
        if self.run is None:
            return ""
        folder = os.path.dirname(self.run.dir)
        place = self.run.url or f"wandb sync {folder}"
        self.run.finish(exit_code=1 if failed else 0)
        return place


# ----------------------------------------------------------------------------------------------------- services by HTTP


class Refused(Exception):
    """The server replied with an error."""


class HttpService:
    """Values that are queued for a server and sent in batches. Rejected values are lost; if the server does not
    reply, everything is kept. A service has |address|, retried(code) (whether a request is retried), entries_of(),
    headers(), prepare() before the first batch, and deliver()."""

    BATCH = 1000       # the most in a request
    WAITING = 100_000  # values that are kept for a server that does not answer
    RETRY = 10         # seconds between attempts

    def __init__(self, seconds):
        self.seconds = seconds  # for a request
        self.waiting, self.lost, self.is_silent, self.next_try = [], 0, False, 0.0

    def request(self, url, body=None):
        """POST with a body, otherwise GET. Raises Refused, or OSError if the server does not reply."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, {"Content-Type": "application/json", **self.headers()})
        try:
            with urllib.request.urlopen(request, timeout=self.seconds) as answer:
                return json.loads(answer.read(1 << 20) or b"{}")
        except urllib.error.HTTPError as error:
            text = error.read(2000).decode("utf-8", "replace")
            if self.retried(error.code):
                raise OSError(f"{error.code} {text}")
            raise Refused(f"{error.code} {text}")
        except ValueError as error:
            raise OSError(f"its answer is not JSON: {error}")

    def log(self, lines):
        for line in lines:
            self.waiting += self.entries_of(line)
        if len(self.waiting) > self.WAITING:
            self.lost += len(self.waiting) - self.WAITING
            del self.waiting[:-self.WAITING]
        if time.monotonic() >= self.next_try:
            self.send()

    def send(self):
        """Sends as much as the server accepts."""
        try:
            self.prepare()
            while self.waiting:
                batch = self.waiting[:self.BATCH]
                try:
                    self.deliver(batch)
                except Refused as error:
                    self.lost += len(batch)
                    note(f"the server rejects {len(batch)} metrics: {error}")
                del self.waiting[:len(batch)]
            if self.is_silent:
                note("the server answers again")
            self.is_silent = False
        except (OSError, Refused, KeyError, TypeError) as error:
            if not self.is_silent:
                note(f"{self.address} cannot be used ({error}); training continues; retrying")
            self.is_silent, self.next_try = True, time.monotonic() + self.RETRY


def json_number(value):
    """JSON has no NaN and no Infinity; MLflow and protocol buffers accept them as text."""
    return value if math.isfinite(value) else str(value).replace("inf", "Infinity").replace("nan", "NaN")


# --------------------------------------------------------------------------------------------------------------- MLflow


class Mlflow(HttpService):
    PARAMETERS, VALUE = 100, 500  # the most in a request, and of a parameter's letters

    def __init__(self):
        super().__init__(float(os.environ.get("MLFLOW_HTTP_REQUEST_TIMEOUT") or 10))
        self.address = os.environ.get("MLFLOW_TRACKING_URI", "").rstrip("/")
        if not re.match(r"https?://[^/]", self.address):
            raise CannotStart(f"MLFLOW_TRACKING_URI is {self.address!r}; set it to the address of an MLflow server, as in "
                              "http://127.0.0.1:5000")
        self.run_id, self.given, self.experiment = "", None, "0"

    def headers(self):
        user, token = os.environ.get("MLFLOW_TRACKING_USERNAME"), os.environ.get("MLFLOW_TRACKING_TOKEN")
        if user:
            secret = user + ":" + os.environ.get("MLFLOW_TRACKING_PASSWORD", "")
            return {"Authorization": "Basic " + base64.b64encode(secret.encode()).decode()}
        return {"Authorization": "Bearer " + token} if token else {}

    def retried(self, code):
        return code >= 500 or code == 429

    def call(self, path, body=None):
        return self.request(f"{self.address}/api/2.0/mlflow/{path}", body)

    def experiment_id(self):
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME")
        if not name:
            return os.environ.get("MLFLOW_EXPERIMENT_ID") or "0"
        try:
            return self.call("experiments/get-by-name?" + urllib.parse.urlencode({"experiment_name": name}))["experiment"]["experiment_id"]
        except Refused as error:
            if "RESOURCE_DOES_NOT_EXIST" not in str(error):
                raise
        return self.call("experiments/create", {"name": name})["experiment_id"]

    def begin(self, given):
        self.given = given
        self.kept = RunId(given["folder"], "mlflow", given["first_step"])
        self.send()

    def prepare(self):
        if self.run_id:
            return
        if self.kept.value or os.environ.get("MLFLOW_RUN_ID"):
            self.run_id = self.kept.value or os.environ["MLFLOW_RUN_ID"]
            self.call("runs/update", {"run_id": self.run_id, "status": "RUNNING"})
            return
        self.experiment = self.experiment_id()
        tags = {"mlflow.runName": self.given["name"], "mlflow.user": getpass.getuser(), "mlflow.source.name": "concord",
                **json.loads(os.environ.get("MLFLOW_TAGS") or "{}")}
        created = self.call("runs/create", {
            "experiment_id": self.experiment, "run_name": self.given["name"], "start_time": int(1000 * time.time()),
            "tags": [{"key": key, "value": str(value)} for key, value in tags.items()]})
        self.run_id = created["run"]["info"]["run_id"]
        self.kept.keep(self.run_id)
        parameters = [{"key": name, "value": text[:self.VALUE]} for name, text in self.given["config"].items()]
        for i in range(0, len(parameters), self.PARAMETERS):
            self.call("runs/log-batch", {"run_id": self.run_id, "params": parameters[i:i + self.PARAMETERS]})

    def entries_of(self, line):
        return [{"key": re.sub(r"[^\w\-. /:]", "_", name), "value": json_number(value), "step": line["step"],
                 "timestamp": int(1000 * line["time"])} for name, value in line["log"].items()]

    def deliver(self, batch):
        self.call("runs/log-batch", {"run_id": self.run_id, "metrics": batch})

    def finish(self, failed):
        self.send()
        self.lost += len(self.waiting)
        if not self.run_id:
            return ""
        try:
            self.call("runs/update", {"run_id": self.run_id, "status": "FAILED" if failed else "FINISHED",
                                      "end_time": int(1000 * time.time())})
        except (OSError, Refused) as error:
            note(f"the end of the run cannot be reported: {error}")
        return f"{self.address}/#/experiments/{self.experiment}/runs/{self.run_id}"


# -------------------------------------------------------------------------------------------------------- OpenTelemetry


def pairs(name):
    """Parses a variable of OpenTelemetry: key=value,key=value with percent-encoding."""
    found = {}
    for part in filter(None, map(str.strip, os.environ.get(name, "").split(","))):
        key, sign, value = part.partition("=")
        if not key.strip() or not sign:
            raise CannotStart(f"{name} has {part!r}; key=value,key=value is expected")
        found[key.strip()] = urllib.parse.unquote(value.strip())
    return found


def attributes(values):
    return [{"key": key, "value": {"stringValue": value}} for key, value in values.items()]


class OpenTelemetry(HttpService):
    """OTLP over HTTP in its JSON encoding: gauges concord.NAME with the time at which they were logged. The step is a
    separate gauge: as an attribute it would make every step a time series."""

    def __init__(self):
        def setting(name, default=""):
            return os.environ.get(f"OTEL_EXPORTER_OTLP_METRICS_{name}") or os.environ.get(f"OTEL_EXPORTER_OTLP_{name}") or default

        timeout = setting("TIMEOUT", "10000")
        if not timeout.isdecimal() or timeout == "0":
            raise CannotStart(f"OTEL_EXPORTER_OTLP_TIMEOUT is {timeout!r}; a number of milliseconds is expected, as in 10000")
        super().__init__(int(timeout) / 1000)
        base = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or "http://localhost:4318"
        self.address = os.environ.get("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT") or base.rstrip("/") + "/v1/metrics"
        if not re.match(r"https?://[^/]", self.address):
            raise CannotStart(f"OTEL_EXPORTER_OTLP_ENDPOINT is {base!r}; set it to the address of a collector that takes OTLP over "
                              "HTTP, as in http://127.0.0.1:4318")
        if setting("PROTOCOL") == "grpc":
            raise CannotStart("OTEL_EXPORTER_OTLP_PROTOCOL is grpc; only http/json is supported: set it, and "
                              "OTEL_EXPORTER_OTLP_ENDPOINT to the collector's port for HTTP, usually 4318")
        self.extra = pairs("OTEL_EXPORTER_OTLP_METRICS_HEADERS") or pairs("OTEL_EXPORTER_OTLP_HEADERS")
        given = pairs("OTEL_RESOURCE_ATTRIBUTES")
        service = os.environ.get("OTEL_SERVICE_NAME") or given.get("service.name") or "concord"
        self.resource = attributes({**given, "service.name": service})
        self.run = ""

    def headers(self):
        return self.extra

    def retried(self, code):
        return code in (429, 502, 503, 504)  # as specified by OTLP: all others are final

    def begin(self, given):
        self.run = given["name"]

    def prepare(self):
        pass

    def entries_of(self, line):
        def entry(name, value):
            point = {"timeUnixNano": str(int(1e9 * line["time"])), "asDouble": json_number(value),
                     "attributes": attributes({"run": self.run})}
            return "concord." + re.sub(r"[^A-Za-z0-9_.\-/]", "_", name)[:200], point

        return [entry(name, value) for name, value in [*line["log"].items(), ("global_step", line["step"])]]

    def deliver(self, batch):
        gauges = {}
        for name, point in batch:
            gauges.setdefault(name, []).append(point)
        metrics = [{"name": name, "gauge": {"dataPoints": points}} for name, points in gauges.items()]
        answer = self.request(self.address, {"resourceMetrics": [{
            "resource": {"attributes": self.resource}, "scopeMetrics": [{"scope": {"name": "concord"}, "metrics": metrics}]}]})
        partial = answer.get("partialSuccess") or {}
        if rejected := int(partial.get("rejectedDataPoints") or 0):
            self.lost += rejected
            note(f"the collector rejects {rejected} of {len(batch)} metrics: {partial.get('errorMessage', '')}")

    def finish(self, failed):
        self.send()
        self.lost += len(self.waiting)
        return "" if self.is_silent else self.address


# ------------------------------------------------------------------------------------------------------------- messages


def read_lines(lines):
    for line in sys.stdin.buffer:
        lines.put(json.loads(line))
    lines.put({"finish": False})


def following(lines, first):
    """Returns |first| with the log lines that have already arrived, and the next message after them, if any."""
    found = [first]
    while len(found) < LINES_AHEAD:
        try:
            line = lines.get_nowait()
        except queue.Empty:
            return found, None
        if "log" not in line:
            return found, line
        found.append(line)
    return found, None


def main(kind):
    for number in signal.SIGINT, signal.SIGTERM, signal.SIGHUP:
        signal.signal(number, signal.SIG_IGN)  # sent to the whole job; the training process decides when it ends
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is not for the training process
    global note
    note = lambda text: say(out, note=text)
    try:
        service = {"wandb": Wandb, "mlflow": Mlflow, "otel": OpenTelemetry}[kind]()
    except CannotStart as error:
        return say(out, error=str(error))
    say(out, ready=True)
    lines = queue.Queue(LINES_AHEAD)
    threading.Thread(target=read_lines, args=(lines,), daemon=True).start()
    has_failed = False
    pending = None
    while True:
        line, pending = pending or lines.get(), None
        try:
            if "begin" in line:
                service.begin(line["begin"])
            elif "log" in line:
                found, pending = following(lines, line)
                service.log(found)
            else:
                place = service.finish(not line["finish"])
                return say(out, done={"place": place, "lost": service.lost})
        except Exception as error:
            if "finish" in line:
                return say(out, done={"place": f"not finished: {error}", "lost": service.lost})
            if not has_failed:
                note(f"{type(error).__name__}: {error}; training continues without it")
            has_failed = True


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except BrokenPipeError:  # the training process is gone
        os._exit(1)
    os._exit(0)  # no thread of a library holds up the end
