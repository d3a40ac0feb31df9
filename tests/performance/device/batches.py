"""Micro-batch sizes up to the limit of a device: tokens per second and memory of `concord train`, with and without
recomputation.

batches.py PROGRAM [--shape qwen2.5-0.5b] [--length 4096] [--sizes 1,2,4,8,16,32] [--steps 15] [--way none] [--way norms] ...
           [--json FILE]

A way is what is recomputed in backward. Each is measured for growing micro-batches until one does not fit. The ratio is
the speed compared with the fastest of all; the largest that fits should not be slower than smaller ones. For equal
sizes the last losses are of the same data, so ways should agree. Shapes, data and the platform are those of train.py.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import train

SELECTIVE = ["--recompute_granularity", "selective", "--recompute_modules"]
WAYS = {
    "none": [],
    "none, whole logits": ["--loss_chunk_size", "0"],
    "norms": [*SELECTIVE, "layernorm"],
    "norms and activations": [*SELECTIVE, "layernorm,mlp_act,moe_act"],
    "mlp": [*SELECTIVE, "mlp"],
    "layers": ["--recompute_granularity", "full"],
}


def measure(program, folder, args, size, more):
    """Returns None if it does not fit."""
    args.batch = size
    try:
        result = train.ours(program, folder, args, more)
    except RuntimeError as error:
        if "out of memory" in str(error):
            return None
        raise
    return {key: result[key] for key in ("tokens_per_second", "last_loss", "memory_bytes")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--shape", choices=train.SHAPES, default="qwen2.5-0.5b")
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--sizes", default="1,2,4,8,16,32")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--way", choices=WAYS, action="append", help="default: all of them")
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    sizes = [int(size) for size in args.sizes.split(",")]
    results = []
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        train.write_inputs(folder, train.SHAPES[args.shape], max(sizes) * 2, args.length)
        for way in args.way or WAYS:
            for size in sizes:
                made = measure(args.program, folder, args, size, WAYS[way])
                results.append({"way": way, "micro_batch": size, "fits": made is not None, **(made or {})})
                print(f"{way}, {size} x {args.length}: "
                      + (f"{made['tokens_per_second']:.0f} tokens/s, {made['memory_bytes'] / 2**30:.1f} GiB" if made else "does not fit"),
                      file=sys.stderr, flush=True)
                if made is None:
                    break
    best = max((each["tokens_per_second"] for each in results if each["fits"]), default=1)
    for each in results:
        if each["fits"]:
            print(f"{each['way']:21} {each['micro_batch']:3} x {args.length}  {each['tokens_per_second']:9.0f} tokens/s  "
                  f"{each['memory_bytes'] / 2**30:6.1f} GiB  {each['tokens_per_second'] / best:.3f}  loss {each['last_loss']:.4f}")
        else:
            print(f"{each['way']:21} {each['micro_batch']:3} x {args.length}  does not fit")
    if args.json:
        Path(args.json).write_text(json.dumps({"shape": args.shape, "length": args.length, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
