#!/usr/bin/env python3
"""Opens the page of a run in a real browser and looks at what its script made of it.

    page_check.py CONCORD FOLDER

Ends with 0 where the curves are drawn and nothing went wrong, 1 where not, 77 (skipped) where there is no Chromium.
"""
import json
import math
import os
import re
import shutil
import subprocess
import sys

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
    """Rank |slow| takes half as long again as the others for the second half of the run."""
    with open(os.path.join(folder, "rank_times.jsonl"), "w") as file:
        for last in range(10, steps + 1, 10):
            data = [0.1 if rank == slow and last > steps // 2 else 0 for rank in range(world)]
            file.write(json.dumps({"step": last, "first_step": last - 9, "stages": [0] * world, "compute": [0.2] * world, "data": data,
                                   "saving": [0] * world, "communication": [0.01] * world}) + "\n")


def rendered(browser, page, profile):
    """The document after its scripts ran, and what the browser said meanwhile."""
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--window-size=1200,1000",
               f"--user-data-dir={profile}", "--virtual-time-budget=2000", "--dump-dom", "file://" + page]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    return done.stdout, done.stderr


HEAT_MAP = "Slow ranks: own time relative to peers"


def charts_in(document):
    """Title and contents of each."""
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
    subprocess.run([concord, "report", os.path.join(folder, "one"), "--html", page], check=True)
    found += findings_of_one_step(rendered(browser, page, profile)[0])
    for world, shown in ((1, 1), (4, 4), (64, 64), (100, 64)):
        write_ranks(os.path.join(folder, "run"), world, slow=world - 1)
        subprocess.run([concord, "report", os.path.join(folder, "run"), "--html", page], check=True)
        found += findings_of_ranks(*rendered(browser, page, profile), world, shown)
    print("\n".join(found) or f"{browser}: four charts and the heat map drawn, nothing on the console")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
