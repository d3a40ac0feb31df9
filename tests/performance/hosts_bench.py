"""All-reduce between two hosts (network namespaces of this machine), two ranks each, compared with torch.distributed
with gloo over the same namespaces in the same run.

    hosts_bench.py HOST_RANK PLUGIN [--json] [--rounds N] [--seconds S] [--sizes BYTES...]

Rounds alternate between the two, and the median of the rounds counts: microseconds of one call on the slowest rank. The
CPU time of the call over all ranks is printed next to it, since it depends less on other load on the machine.
CONCORD_PYTHON is a Python with torch; without one there is no peer.
"""

import argparse
import json
import os
import statistics
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "hosts"))

from hosts import Hosts, skip_without_engine  # noqa: E402
from ranks import Ranks  # noqa: E402

SIZES = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20]
GOAL = 1.5
RANKS = 4


def gloo(hosts):
    python = os.environ.get("CONCORD_PYTHON", "python3")
    variables = {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": hosts.addresses[0], "MASTER_PORT": "4600",
                 "GLOO_SOCKET_IFNAME": "link0"}
    peer = os.path.join(HERE, "peers", "collectives_gloo.py")
    ranks = Ranks(hosts, [([python, peer], {**variables, "RANK": str(rank)}) for rank in range(RANKS)])
    greetings = [ranks.receive(rank) for rank in range(RANKS)]
    return ranks if all(greeting.startswith("ready ") for greeting in greetings) else None


def cpu_microseconds(ranks):
    total = 0
    for process in ranks.processes:
        with open(f"/proc/{process.pid}/stat", encoding="ascii") as file:
            total += sum(int(word) for word in file.read().rsplit(")", 1)[1].split()[11:13])  # utime and stime
    return total * 1e6 / os.sysconf("SC_CLK_TCK")


def measure(ranks, size, count):
    """Returns the microseconds of one call on the slowest rank, and its CPU time over all ranks."""
    before = cpu_microseconds(ranks)
    slowest = max(float(answer) for answer in ranks.ask_all(f"all_reduce {size} {count}"))
    return slowest, (cpu_microseconds(ranks) - before) / (count + 2)  # two more to warm up


def row_for(contestants, size, rounds, seconds):
    times = {name: [] for name in contestants}
    counts = {name: max(3, min(5000, int(seconds * 1e6 / measure(ranks, size, 3)[0]))) for name, ranks in contestants.items()}
    for _ in range(rounds):
        for name, ranks in contestants.items():
            times[name].append(measure(ranks, size, counts[name]))
    (ours, our_cpu), (peer, peer_cpu) = ([statistics.median(column) for column in zip(*times[name])] if name in times
                                         else (None, None) for name in ("ours", "gloo"))
    name = f"hosts/all_reduce/f32/{size >> 20}MB" if size >= 1 << 20 else f"hosts/all_reduce/f32/{size >> 10}KB"
    return {"name": f"{name}/2x2ranks", "ours": ours, "peer": peer, "unit": "us", "goal": GOAL,
            "ratio": peer / ours if peer else None, "met": peer / ours >= GOAL if peer else None,
            "ours_cpu": our_cpu, "peer_cpu": peer_cpu}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("plugin")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.2)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    arguments = parser.parse_args()
    skip_without_engine(arguments.plugin)
    rows = []
    with Hosts(2) as hosts:
        contestants = {"ours": Ranks.joined(hosts, arguments.program, arguments.plugin, RANKS)}
        if peer := gloo(hosts):
            contestants["gloo"] = peer
        for size in arguments.sizes:
            row = row_for(contestants, size, arguments.rounds, arguments.seconds)
            rows.append(row)
            if not arguments.json and row["peer"]:
                print(f"{row['name']:40} {row['ours']:10.1f} {row['peer']:10.1f} us {row['ratio']:6.2f}x  "
                      f"{'met' if row['met'] else 'NOT MET':7}  processors {row['ours_cpu']:8.0f} {row['peer_cpu']:8.0f} us",
                      flush=True)
            elif not arguments.json:
                print(f"{row['name']:40} {row['ours']:10.1f}          - us  no peer", flush=True)
        assert contestants["ours"].end() == [0] * RANKS
    if arguments.json:
        print(json.dumps({"rows": rows}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
