"""Draws the time of training steps as one stacked bar per profile, one colour per class of kernels.

profile_bars.py OUT.svg NAME=PROFILE...

PROFILE is the OUT/profile/rank_0.json of `concord train --profile`, or a table of one: a line "step 127.43 ms, busy 124.33 ms,
..." and lines "22.629 ms   24.0x  kernel name". A rank_0.json is also written as such a table, rank_0.txt. Kernels without a class are
"other"; the rest of the step is idle time. Prints the classes as a table.
"""

import collections
import json
import re
import sys
from pathlib import Path

CLASSES = [
    ("GEMM", r"nvjet|cublas|gemm|cutlass|weight_grad", "#4c78a8"),
    ("attention", r"sdpa|fmha|compute_dot_do_o|convert_dq", "#f58518"),
    ("SwiGLU", r"swiglu|ward<[^>]*>\(long, long", "#54a24b"),
    ("cross entropy", r"cross_entropy|VocabRows|rescale_row", "#e45756"),
    ("norms, residuals", r"norm_cu|ward<[^>]*>\(Rows|bf.?16.*CUDAFunctor_add|CUDAFunctor_add(IN3c108|<c10::)BFloat16", "#72b7b2"),
    ("rope, packing", r"rope_cu|PackedRope|CatArrayBatchedCopy", "#b279a2"),
    ("AdamW, gradient norm", r"adamw|ForeachReduceOp|lpnorm|MulFunctorIf|MulFunctor<f", "#9d755d"),
    ("other", r"", "#bab0ac"),
]
IDLE = ("idle", "#eeeeee")
OWN_NAMES = re.compile(r"\(anonymous namespace\)::|concord::cuda::torch_side::")  # left out, so that arguments fit


def tabulate(trace):
    """Returns the table of a trace: milliseconds per step of the step, of its kernels together, and of each kernel."""
    events = [event for event in json.loads(trace)["traceEvents"] if event["ph"] == "X"]
    steps = sum(event["cat"] == "step" for event in events)
    work = sorted((event["ts"], event["ts"] + event["dur"], OWN_NAMES.sub("", event["name"])) for event in events
                  if event["cat"] in ("kernel", "copy", "fill"))
    if not work:
        sys.exit("the profile has no kernels of a device; see docs/cuda.md for CUPTI")
    first, last = work[0][0], max(end for _, end, _ in work)
    times, counts, busy, reached = collections.Counter(), collections.Counter(), 0.0, first
    for begin, end, name in work:
        times[name] += end - begin
        counts[name] += 1
        busy += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    step, busy = (last - first) / steps / 1e3, busy / steps / 1e3
    lines = [f"step {step:.2f} ms, busy {busy:.2f} ms, idle {step - busy:.2f} ms, launches/step {len(work) / steps:.0f}"]
    lines += [f"{time / steps / 1e3:8.3f} ms {counts[name] / steps:6.1f}x  {name[:110]}" for name, time in times.most_common(45)]
    return "\n".join(lines) + "\n"


def read(path):
    text = Path(path).read_text()
    if path.endswith(".json"):
        text = tabulate(text)
        Path(path).with_suffix(".txt").write_text(text)
    step, busy = map(float, re.search(r"step ([\d.]+) ms, busy ([\d.]+) ms", text).groups())
    times = {name: 0.0 for name, _, _ in CLASSES}
    for time, kernel in re.findall(r"^\s*([\d.]+) ms\s+[\d.]+x\s+(.*)$", text, re.M):
        name = next(name for name, pattern, _ in CLASSES if re.search(pattern, kernel, re.I))
        times[name] += float(time)
    times["other"] += max(0.0, busy - sum(times.values()))
    times[IDLE[0]] = step - busy
    return step, times


def draw(profiles):
    width, height, left = 760, 46, 150
    longest = max(step for step, _ in profiles.values())
    colours = {name: colour for name, _, colour in CLASSES} | dict([IDLE])
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 70}" '
             f'height="{height * len(profiles) + 60}" font-family="sans-serif" font-size="12">']
    for row, (label, (step, times)) in enumerate(profiles.items()):
        x, y = float(left), row * height + 8
        lines.append(f'<text x="{left - 8}" y="{y + 20}" text-anchor="end">{label}</text>')
        for name, time in times.items():
            size = time / longest * width
            lines.append(f'<rect x="{x:.1f}" y="{y}" width="{size:.1f}" height="30" fill="{colours[name]}">'
                         f"<title>{name}: {time:.1f} ms</title></rect>")
            if size > 26:
                lines.append(f'<text x="{x + size / 2:.1f}" y="{y + 20}" text-anchor="middle">{time:.1f}</text>')
            x += size
        lines.append(f'<text x="{x + 6:.1f}" y="{y + 20}">{step:.1f} ms</text>')
    y, x = height * len(profiles) + 24, left
    for name, colour in colours.items():
        lines.append(f'<rect x="{x}" y="{y}" width="10" height="10" fill="{colour}"/>'
                     f'<text x="{x + 14}" y="{y + 10}">{name}</text>')
        x += 30 + 7 * len(name)
        if x > left + width - 60:
            x, y = left, y + 18
    return "\n".join(lines + ["</svg>", ""])


def main():
    profiles = {}
    for word in sys.argv[2:]:
        label, path = word.split("=", 1)
        profiles[label] = read(path)
    names = list(next(iter(profiles.values()))[1])
    for name in names:
        print(f"| {name} | " + " | ".join(f"{times[name]:.1f}" for _, times in profiles.values()) + " |")
    Path(sys.argv[1]).write_text(draw(profiles))


if __name__ == "__main__":
    sys.exit(main())
