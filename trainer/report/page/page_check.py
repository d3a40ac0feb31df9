#!/usr/bin/env python3
"""Opens the page of a run in a real browser and checks what its script has drawn.

    page_check.py CONCORD FOLDER

Exits with 0 if the curves are drawn without errors, 1 if not, 77 (skipped) without Chromium.
"""
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

STEPS = 200
BROWSERS = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"]


def write_run(folder, steps=range(1, STEPS + 1), evaluations=(50, 100, 200)):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "metrics.jsonl"), "w") as file:
        for step in steps:
            loss = None if step == 150 else 2 + 3 * math.exp(-step / 40)
            file.write(json.dumps({"step": step, "loss": loss, "learning_rate": 1e-3 * step / STEPS, "grad_norm": 1 + 1 / step,
                                   "tokens": 1024 * step, "tokens_per_second": 5e4, "seconds": 0.02, "time": 1e9 + step,
                                   "non_finite": {"loss": "nan"} if loss is None else {}}) + "\n")
    with open(os.path.join(folder, "eval_metrics.jsonl"), "w") as file:
        for step in evaluations:
            file.write(json.dumps({"step": step, "eval_loss": 2.5, "time": 1e9 + step}) + "\n")


def write_ranks(folder, world, slow, steps=STEPS):
    """Rank |slow| takes 1.5 times as long as the others in the second half of the run."""
    with open(os.path.join(folder, "rank_times.jsonl"), "w") as file:
        for last in range(10, steps + 1, 10):
            data = [0.1 if rank == slow and last > steps // 2 else 0 for rank in range(world)]
            file.write(json.dumps({"step": last, "first_step": last - 9, "stages": [0] * world, "compute": [0.2] * world, "data": data,
                                   "saving": [0] * world, "communication": [0.01] * world}) + "\n")


def rendered(browser, page, profile):
    """Returns the document after its scripts ran, and the browser's output."""
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--window-size=1200,1000",
               f"--user-data-dir={profile}", "--virtual-time-budget=2000", "--dump-dom", "file://" + page]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    return done.stdout, done.stderr


HEAT_MAP = "Slow ranks: own time relative to peers"


def charts_in(document):
    """Returns title and content of each chart."""
    return re.findall(r'<svg role="img" aria-label="([^"]*)"[^>]*>(.*?)</svg>', document, re.DOTALL)


def findings_of_ranks(document, log, world, shown):
    """One row per rank, no row over another, the slow rank in red, and a legend."""
    inside = dict(charts_in(document)).get(HEAT_MAP)
    if inside is None:
        yield f"{world} ranks: no heat map; charts are {[name for name, _ in charts_in(document)]}"
        return
    columns = STEPS // 10
    cells = re.findall(r'<rect x="([^"]*)" y="([^"]*)" width="([^"]*)" height="([^"]*)" class="cell"', inside)
    rows = sorted({float(y) for _, y, _, _ in cells})
    if len(cells) != shown * columns or len(rows) != shown:
        yield f"{world} ranks: {len(cells)} cells in {len(rows)} rows, not {shown} rows of {columns}"
    if any(below - above < float(cells[0][3]) for above, below in zip(rows, rows[1:])):
        yield f"{world} ranks: rows overlap"
    red = re.findall(r'class="heat" fill="var\(--bad\)" fill-opacity="1.00"', inside)
    if len(red) != (columns // 2 if world > 1 else 0):
        yield f"{world} ranks: {len(red)} cells are red"
    labels = re.findall(r"<text[^>]*>(?:rank )?(\d+)</text>", inside)
    if "rank 0" not in inside or "step 10" not in inside or not labels and world > 1:
        yield f"{world} ranks: the axes have no labels"
    if (f"the {shown} slowest of {world} ranks" in document) != (world > shown):
        yield f"{world} ranks: the legend does not say that ranks are left out, or does so wrongly"
    if not re.search(r'class="swatch".*?1.1×: slow', document, re.DOTALL) or ("no peers" in document.split("<script")[0]) != (world == 1):
        yield f"{world} ranks: the legend is wrong"
    if "NaN" in inside or "Infinity" in inside or "CONSOLE" in log:
        yield f"{world} ranks: a coordinate is not finite, or the console has an error: {log}"


def findings(document, log):
    charts = charts_in(document)
    wanted = ["Loss", "Learning rate", "Gradient norm", "Throughput, tokens/s"]
    if [name for name, _ in charts] != wanted:
        yield f"charts are {[name for name, _ in charts]}, not {wanted}"
    for name, inside in charts:
        longest = max((len(re.findall("[ML]", path)) for path in re.findall(r'<path d="([^"]*)"', inside)), default=0)
        if longest < STEPS - 1:
            yield f"{name}: the longest curve has {longest} points"
        if "NaN" in inside or "Infinity" in inside:
            yield f"{name}: a coordinate is not finite"
    loss = charts[0][1] if charts else ""
    if loss.count("<circle") != 3 + 1:
        yield f"loss: {loss.count('<circle')} circles, not one per evaluation and one cursor"
    if "step 150: not finite" not in loss:
        yield "loss: the step that was NaN is not marked"
    for line in log.splitlines():
        if "CONSOLE" in line:
            yield "the browser's console: " + line


def findings_of_one_step(document):
    charts = charts_in(document)
    if not charts:
        yield "one step: no charts"
    for name, inside in charts:
        below = re.findall(r'<text x="[^"]*" y="242"[^>]*>([^<]*)<', inside)
        if below != ["7"]:
            yield f"one step: the axis of {name} has {below}, not the step"
        if inside.count("<circle") != 1 + 1:
            yield f"one step: {name} has no dot for it"


class Browser:
    """A browser with one page, controlled over the pipes of --remote-debugging-pipe: JSON messages that end with a
    zero byte."""

    def __init__(self, browser, profile, address):
        theirs, ours = os.pipe()
        self.answers, out = os.pipe()
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1200,600", f"--user-data-dir={profile}",
                   "--remote-debugging-pipe"]
        self.process = subprocess.Popen(["bash", "-c", f'exec "$0" "$@" 3<&{theirs} 4>&{out}', *command], pass_fds=(theirs, out),
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(theirs)
        os.close(out)
        self.requests, self.count, self.rest, self.session = ours, 0, b"", None
        target = self.ask("Target.createTarget", url=address)["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def ask(self, method, **params):
        self.count += 1
        message = {"id": self.count, "method": method, "params": params} | ({"sessionId": self.session} if self.session else {})
        os.write(self.requests, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.rest:
                more = os.read(self.answers, 1 << 16)
                if not more:
                    raise AssertionError("the browser ended")
                self.rest += more
            line, _, self.rest = self.rest.partition(b"\0")
            answer = json.loads(line)
            if answer.get("id") == self.count:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return answer["result"]

    def value(self, expression):
        result = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in result:
            raise AssertionError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait_until(self, expression):
        while not self.value(expression):
            time.sleep(0.1)

    def close(self):
        self.ask("Browser.close")
        self.process.wait()


def status_of(address, **headers):
    try:
        return urllib.request.urlopen(urllib.request.Request(address, headers=headers)).status
    except urllib.error.HTTPError as error:
        return error.code


POINTS = "(document.querySelector('svg path') ? document.querySelector('svg path').getAttribute('d').match(/[ML]/g).length : 0)"


def findings_of_live(concord, browser, folder, profile):
    """The page of a running job: new values appear, and the reader's selections are kept."""
    run = os.path.join(folder, "live")
    os.makedirs(run)
    served = subprocess.Popen([concord, "report", run, "--serve", "--names", "<live>"], stdout=subprocess.PIPE, text=True)
    line = served.stdout.readline()
    address = re.search(r"http://127\.0\.0\.1:\d+", line)[0] + "/"
    for name, code in (("evil.example", 403), ("localhost", 200)):
        if status_of(address, Host=name) != code:
            yield f"live: a request for {name} is not answered with {code}"
    if status_of(address + "etc/passwd") != 404:
        yield "live: a path other than / is served"
    page = Browser(browser, profile, address)
    page.wait_until("document.readyState === 'complete' && document.documentElement.dataset.live === '2'")
    if "no step logged yet" not in page.value("document.getElementById('reason').textContent"):
        yield "live: it does not say that no step is logged yet"
    write_run(run, range(1, 31), evaluations=())
    page.wait_until(f"{POINTS} === 30")
    page.value("document.querySelector('.card button').click(); document.getElementById('axis').value = 'tokens';"
               "document.getElementById('axis').onchange(); document.body.style.zoom = 1.5; window.kept = 1; scrollTo(0, 300)")
    before = page.value("[scrollY, document.querySelectorAll('svg').length]")
    write_run(run, range(1, STEPS + 1))
    page.wait_until(f"{POINTS} === {STEPS - 1}")
    after = page.value("[scrollY, document.querySelectorAll('svg').length]")
    if before[0] == 0 or after != before:
        yield f"live: scrolling and number of charts were {before} and became {after}"
    kept = page.value("[window.kept, document.body.style.zoom, document.getElementById('axis').value,"
                      "document.querySelector('.card button').getAttribute('aria-pressed')].join()")
    if kept != "1,1.5,tokens,true":
        yield f"live: the reader's choices are lost: {kept}"
    if "evaluation" not in page.value("document.querySelector('.legend').textContent"):
        yield "live: the legend does not name what came later"
    if page.value("document.title") != "<live>" or "205k" not in page.value("document.getElementById('tiles').textContent"):
        yield "live: the summary is not that of the last step: " + page.value("document.getElementById('tiles').textContent")
    served.send_signal(signal.SIGINT)
    if served.wait() != 0:
        yield f"live: SIGINT ends it with {served.returncode}"
    page.wait_until("document.getElementById('reason').textContent.startsWith('not refreshed')")
    page.close()


def main():
    concord, folder = sys.argv[1:]
    browser = next((path for path in map(shutil.which, BROWSERS) if path), None)
    if browser is None:
        print("skipped: no browser; looked for " + ", ".join(BROWSERS))
        return 77
    shutil.rmtree(folder, ignore_errors=True)
    write_run(os.path.join(folder, "run"))
    page = os.path.join(os.path.abspath(folder), "page.html")
    subprocess.run([concord, "report", os.path.join(folder, "run"), "--html", page, "--floor", "1.9"], check=True)
    profile = os.path.join(os.path.abspath(folder), "profile")
    found = list(findings(*rendered(browser, page, profile)))
    write_run(os.path.join(folder, "one"), range(7, 8), evaluations=())
    subprocess.run([concord, "report", os.path.join(folder, "one"), "--html", page, "--overwrite"], check=True)
    found += findings_of_one_step(rendered(browser, page, profile)[0])
    for world, shown in ((1, 1), (4, 4), (64, 64), (100, 64)):
        write_ranks(os.path.join(folder, "run"), world, slow=world - 1)
        subprocess.run([concord, "report", os.path.join(folder, "run"), "--html", page, "--overwrite"], check=True)
        found += findings_of_ranks(*rendered(browser, page, profile), world, shown)
    found += findings_of_live(concord, browser, folder, profile)
    print("\n".join(found) or f"{browser}: the live page follows its run; four charts and the heat map drawn, nothing on the console")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
