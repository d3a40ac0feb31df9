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


def rendered(browser, page, profile):
    """The document after its scripts ran, and what the browser said meanwhile."""
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--window-size=1200,1000",
               f"--user-data-dir={profile}", "--virtual-time-budget=2000", "--dump-dom", "file://" + page]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    return done.stdout, done.stderr


def findings(document, log):
    charts = re.findall(r'<svg role="img" aria-label="([^"]*)"[^>]*>(.*?)</svg>', document, re.DOTALL)
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
    charts = re.findall(r'<svg role="img" aria-label="([^"]*)"[^>]*>(.*?)</svg>', document, re.DOTALL)
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
    print("\n".join(found) or f"{browser}: four charts drawn, nothing on the console")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
