"""Draws a table as horizontal bars: bars.py DATA.csv OUT.svg [--unit s] [--log] [--title TEXT]

The first column of DATA.csv has the labels, every other column is a series; empty cells have no bar.
"""

import argparse
import csv
import math
from pathlib import Path

COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2")
LEFT, WIDTH, HEIGHT, GAP = 210, 560, 16, 10


def width(value, largest, smallest, log):
    if not log:
        return value / largest * WIDTH
    decades = math.log10(largest) - math.floor(math.log10(smallest))
    return (math.log10(value) - math.floor(math.log10(smallest))) / decades * WIDTH


def draw(series, rows, args):
    values = [float(cell) for _, cells in rows for cell in cells if cell]
    lines, y = [f'<text x="{LEFT}" y="18" font-size="14">{args.title}</text>'], 30
    for number, name in enumerate(series):
        lines.append(f'<rect x="{LEFT + 130 * number}" y="{y}" width="10" height="10" fill="{COLOURS[number]}"/>'
                     f'<text x="{LEFT + 130 * number + 14}" y="{y + 10}">{name}</text>')
    y += 22
    for label, cells in rows:
        filled = [(number, cell) for number, cell in enumerate(cells) if cell]
        lines.append(f'<text x="{LEFT - 8}" y="{y + HEIGHT * len(filled) / 2 + 4}" text-anchor="end">{label}</text>')
        for number, cell in filled:
            size = width(float(cell), max(values), min(values), args.log)
            lines.append(f'<rect x="{LEFT}" y="{y}" width="{size:.1f}" height="{HEIGHT - 2}" fill="{COLOURS[number]}"/>'
                         f'<text x="{LEFT + size + 5:.1f}" y="{y + 11}">{cell} {args.unit}</text>')
            y += HEIGHT
        y += GAP
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 110}" height="{y}" '
                      'font-family="sans-serif" font-size="12">', *lines, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--unit", default="")
    parser.add_argument("--log", action="store_true", help="logarithmic scale")
    parser.add_argument("--title", default="")
    args = parser.parse_args()
    (_, *series), *rows = csv.reader(args.data.read_text().splitlines())
    args.out.write_text(draw(series, [(label, cells) for label, *cells in rows], args))


if __name__ == "__main__":
    main()
