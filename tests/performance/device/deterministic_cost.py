"""The cost of deterministic mode on a device: deterministic_cost.py PROGRAM [--shape NAME]... [--steps 15]

Trains models of real shapes (those of train.py) alternately without and with --deterministic_mode, twice each, and
prints tokens per second and the ratio of the better runs. The platform is that of the environment (CONCORD_PLATFORM).
"""

import argparse
import sys
import tempfile
from pathlib import Path

import train


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--shape", action="append", choices=train.SHAPES)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--warmup", type=int, default=5)
    args = parser.parse_args()
    for name in args.shape or ("qwen2.5-0.5b", "qwen2.5-1.5b", "qwen3-moe-1.8b"):
        rates = {"false": [], "true": []}
        with tempfile.TemporaryDirectory() as path:
            train.write_inputs(Path(path), train.SHAPES[name], args.batch * 8, args.length)
            for _ in range(2):
                for mode, seen in rates.items():
                    seen.append(train.ours(args.program, Path(path), args, ["--deterministic_mode", mode])["tokens_per_second"])
        without, fixed = max(rates["false"]), max(rates["true"])
        print(f"{name}: {without:.0f} tokens/s without, {fixed:.0f} with deterministic_mode, ratio {fixed / without:.3f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
