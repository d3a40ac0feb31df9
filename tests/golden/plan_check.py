"""Runs `concord plan --json` for every case of groups/groups.json and compares with Megatron's tables.

usage: plan_check.py PROGRAM. Large worlds are compared by the hash of their lists; a rank's own view with the lists."""
import hashlib
import json
import os
import subprocess
import sys

program = sys.argv[1]
golden = json.load(open(os.path.join(os.path.dirname(__file__), "groups", "groups.json")))
NAMES = {"mp": "tp_pp"}  # Megatron's name: ours


def plan(config, *more):
    command = [program, "plan", "--json", "--world_size", config["world"], "--tensor_model_parallel_size", config["tp"],
               "--pipeline_model_parallel_size", config["pp"], "--context_parallel_size", config["cp"],
               "--expert_model_parallel_size", config["ep"], "--expert_tensor_parallel_size", config["etp"],
               "--order", config["order"], *more]
    return subprocess.run([str(word) for word in command], capture_output=True, text=True)


def own_group(groups, rank):
    return next((group for group in groups if rank in group), None)


def check_case(entry):
    config = entry["config"]
    document = json.loads(plan(config).stdout)
    assert document["world_size"] == config["world"] and document["order"] == config["order"]
    for name in ("tp", "cp", "dp", "pp", "ep", "etp", "edp"):
        assert document["dims"][name] == config[name], (config, name)
    rank = config["world"] * 5 // 7
    own = json.loads(plan(config, "--rank", rank).stdout)["groups"]
    for theirs, expected in (entry.get("groups") or entry["digests"]).items():
        ours = document["groups"][NAMES.get(theirs, theirs)]
        if "digests" in entry:
            text = json.dumps(ours, separators=(",", ":"))
            assert hashlib.sha256(text.encode()).hexdigest() == expected["sha256"], (config, theirs)
        else:
            assert ours == expected, (config, theirs)
        assert own[NAMES.get(theirs, theirs)] == own_group(ours, rank), (config, theirs, rank)


for case in golden["cases"]:
    check_case(case)
for case in golden["refused"]:
    refused = plan(case["config"])
    assert refused.returncode == 2 and refused.stderr and not refused.stdout, case
huge = {"world": 2**40, "tp": 8, "pp": 64, "cp": 4, "ep": 1, "etp": 8, "order": "tp-cp-ep-dp-pp"}
own = json.loads(plan(huge, "--rank", 2**40 - 1).stdout)["groups"]
assert own["dp"]["size"] == 2**40 // (8 * 64 * 4) and len(own["tp"]) == 8, own["dp"]
assert plan(huge).returncode == 2
print(f"{len(golden['cases'])} layouts as Megatron has them, {len(golden['refused'])} refused, and a world of 2^40")
