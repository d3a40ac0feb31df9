"""Drives `concord schedule` and judges what it prints by a simulation of its own.

usage: schedule_check.py PROGRAM FOLDER. FOLDER is for files. For many sizes of every kind the actions are run again here,
with F = B = W = 1 and free transfers, and have to give the makespan, the bubbles and the activations that were reported."""
import json
import os
import subprocess
import sys
import xml.etree.ElementTree

program, folder = sys.argv[1], sys.argv[2]
golden = os.path.join(os.path.dirname(os.path.abspath(__file__)), "schedules")
os.makedirs(folder, exist_ok=True)


def run(*arguments):
    return subprocess.run([program, "schedule", *map(str, arguments)], capture_output=True, text=True)


def answer(*arguments):
    result = run(*arguments, "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def refusal(*arguments):
    result = run(*arguments)
    assert result.returncode == 2 and result.stdout == "", (arguments, result)
    return result.stderr


def parse(text):
    digits = len(text) - len(text.lstrip("0123456789"))
    rest = text[digits:]
    kind = rest.rstrip("0123456789")
    return int(text[:digits]), kind, int(rest[len(kind):])


def price(actions):
    """Makespan, bubble, idle within a rank and peaks of lists of computations, by trying every rank again and again."""
    cost = {"F": 1, "B": 2, "I": 1, "W": 1}
    lists = [[parse(text) for text in row] for row in actions]
    stages = 1 + max(stage for row in lists for stage, _, _ in row)
    ends, clock, position = {}, [0] * len(lists), [0] * len(lists)
    first = [None] * len(lists)
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(lists):
            while position[rank] < len(row):
                stage, kind, microbatch = row[position[rank]]
                needs = []
                if kind == "F" and stage > 0:
                    needs = [(stage - 1, "F", microbatch)]
                elif kind in "BI":
                    needs = [(stage, "F", microbatch)] + ([(stage + 1, "G", microbatch)] if stage < stages - 1 else [])
                elif kind == "W":
                    needs = [(stage, "G", microbatch)]
                if any(need not in ends for need in needs):
                    break
                start = max([clock[rank]] + [ends[need] for need in needs])
                first[rank] = start if first[rank] is None else first[rank]
                clock[rank] = start + cost[kind]
                ends[(stage, {"B": "G", "I": "G"}.get(kind, kind), microbatch)] = clock[rank]
                position[rank] += 1
                moved = True
    assert position == [len(row) for row in lists], "stuck"
    busy = [sum(cost[kind] for _, kind, _ in row) for row in lists]
    peaks = []
    for row in lists:
        held = peak = 0
        for _, kind, _ in row:
            peak = max(peak, held + (kind == "F"))
            held += (kind == "F") - (kind in "BW")
        peaks.append(peak if any(kind != "F" for _, kind, _ in row) else 1)
    makespan = max(clock)
    return (makespan, max(1 - b / makespan for b in busy),
            max(1 - b / (end - start) for b, start, end in zip(busy, first, clock)), peaks)


def check_prices():
    for kind in ["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "forward-only"]:
        for pp, microbatches in [(2, 4), (3, 9), (4, 16), (8, 32)]:
            document = answer("--kind", kind, "--pp", pp, "--microbatches", microbatches)
            makespan, bubble, idle, peaks = price(document["actions"])
            assert (document["kind"], document["pp"], document["microbatches"]) == (kind, pp, microbatches)
            assert abs(document["makespan"] - makespan) < 1e-9, (kind, document["makespan"], makespan)
            assert abs(document["bubble_ratio"] - bubble) < 1e-9 and abs(document["device_idle_ratio"] - idle) < 1e-9, kind
            assert document["peak_activations"] == peaks, (kind, document["peak_activations"], peaks)
            assert document["activation_memory"] == [peak / document["vpp"] for peak in peaks]


def check_goals():
    def at(kind):
        return answer("--kind", kind, "--pp", 8, "--microbatches", 32)
    assert round(at("1f1b")["bubble_ratio"], 3) == 0.179
    assert at("interleaved")["bubble_ratio"] <= 0.099
    assert at("zb-h1")["bubble_ratio"] <= 0.068
    assert at("zb-v")["bubble_ratio"] <= 0.04 and at("zb-v")["device_idle_ratio"] <= 0.01
    assert max(at("zb-v")["activation_memory"]) <= max(at("1f1b")["activation_memory"])
    compared = {row["kind"]: row for row in answer("--pp", 8, "--microbatches", 32, "--compare")["schedules"]}
    assert len(compared) == 6 and compared["zb-v"]["makespan"] < compared["zb-h1"]["makespan"] < compared["1f1b"]["makespan"]


def check_files():
    svg = os.path.join(folder, "schedule.svg")
    assert run("--kind", "zb-v", "--pp", 8, "--microbatches", 32, "--svg", svg, "--overwrite").returncode == 0
    tree = xml.etree.ElementTree.parse(svg)
    assert len(list(tree.iter("{http://www.w3.org/2000/svg}title"))) == 8 * 32 * 2 * 3
    compared = os.path.join(folder, "compared.svg")
    assert run("--pp", 4, "--microbatches", 8, "--compare", "--svg", compared, "--overwrite").returncode == 0
    xml.etree.ElementTree.parse(compared)
    csv = os.path.join(folder, "schedule.csv")
    for more in [], ["--transfers"]:
        assert run("--kind", "zb-h1", "--pp", 4, "--microbatches", 8, "--save_csv", csv, "--overwrite", *more).returncode == 0
        made, read = answer("--kind", "zb-h1", "--pp", 4, "--microbatches", 8), answer("--csv", csv)
        assert read["kind"] == "csv" and read["actions"] == made["actions"] and read["program"] == made["program"]
        assert answer("--kind", csv) == read
    theirs = answer("--csv", os.path.join(golden, "zbvzerobubble_pp8_m32_v2.csv"), "--max_activations", 16)
    assert (theirs["pp"], theirs["vpp"], theirs["microbatches"]) == (8, 2, 32)
    with open(csv, "w", encoding="ascii") as file:
        file.write("0F0,0B0\n1F0,1B0,1F0\n")
    assert "row 2, column 3 (1F0)" in refusal("--csv", csv)


def check_refusals():
    assert "--pp is required" in refusal("--microbatches", 4)
    assert "--microbatches is required" in refusal("--pp", 4)
    assert "must be one of gpipe, 1f1b" in refusal("--kind", "zb", "--pp", 4, "--microbatches", 4)
    assert "cost_f is 0" in refusal("--pp", 4, "--microbatches", 4, "--cost_f", 0)
    assert "12 micro-batches in groups of 8" in refusal("--kind", "interleaved", "--pp", 8, "--microbatches", 12)
    assert "but it is 1" in refusal("--kind", "interleaved", "--pp", 1, "--vpp", 2, "--microbatches", 12)
    assert "--width is -1" in refusal("--pp", 2, "--microbatches", 4, "--width", -1)
    assert "unknown placement" in refusal("--kind", "forward-only", "--pp", 2, "--microbatches", 2, "--placement", "w")
    assert "defines its own ranks" in refusal("--csv", "some.csv", "--pp", 2)
    assert "is not a regular file but a folder" in refusal("--csv", folder)
    assert "remove --compare" in refusal("--pp", 2, "--microbatches", 4, "--compare", "--save_csv", "x.csv")


check_prices()
check_goals()
check_files()
check_refusals()
print("schedules agree")
