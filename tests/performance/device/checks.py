"""The cost of a run's checks on a device: steps with all of them, and without one or all, alternating in one run.

checks.py PROGRAM [--shape qwen2.5-0.5b] [--batch 4] [--length 4096] [--steps 20] [--rounds 3] [--json FILE]

Prints tokens per second (median over rounds) and the ratio to the run without checks.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from train import SHAPES, ours, write_inputs

# Without rerun_mode every rank looks for values that are not finite itself, unless that is disabled too.
WITHOUT_RERUNS = ["--rerun_mode", "disabled", "--check_for_nan_in_loss_and_grad", "false"]
WITHOUT_STRAGGLERS = ["--straggler_action", "none"]
OFF = [*WITHOUT_RERUNS, "--check_replicas_steps", "0", *WITHOUT_STRAGGLERS]
KINDS = {
    "without checks": OFF,
    "as by default": [],
    "without rerun_mode": WITHOUT_RERUNS,
    "without straggler_action": WITHOUT_STRAGGLERS,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--shape", choices=SHAPES, default="qwen2.5-0.5b")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rates = {name: [] for name in KINDS}
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        write_inputs(folder, SHAPES[args.shape], 8 * args.batch, args.length)
        for _ in range(args.rounds):
            for name, more in KINDS.items():
                rates[name].append(ours(args.program, folder, args, more)["tokens_per_second"])
                print(f"{name}: {rates[name][-1]:.0f} tokens/s", flush=True)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    for name, rate in medians.items():
        print(f"{name}: {rate:.0f} tokens/s, {rate / medians['without checks']:.4f} of the run without checks")
    if args.json:
        args.json.write_text(json.dumps({"rates": rates, "medians": medians}))


if __name__ == "__main__":
    main()
