"""Draws the picture of the README: what each release brought to a dataset, from its recorded operations.

python docs/history.py WORKSPACE DATASET > docs/history.svg
"""

from __future__ import annotations

import sys
from collections import Counter
from html import escape
from itertools import accumulate

import odfchain as odf

WIDTH, HEIGHT, BASE, SCALE = 180, 270, 190, 130
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328 } .dim { fill: #59636e } .big { font-weight: 600 }
  .old { fill: #d0d7de } .new { fill: #1a7f37 } .corrected { fill: #bf8700 } .gone { fill: #cf222e }
  path { stroke: #8c959f; fill: none }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .dim { fill: #9198a1 } .old { fill: #3d444d } .new { fill: #3fb950 }
    .corrected { fill: #d29922 } .gone { fill: #f85149 }
  }
"""


def draw(dataset: odf.Dataset) -> str:
    """The dataset's data blocks from left to right, each with the rows that it found and left, as SVG."""
    rows = dataset.scan(["op", "event_time", "system_time"]).to_arrow().to_pylist()
    blocks: dict[object, Counter[int]] = {}
    days: dict[object, str] = {}
    for row in rows:
        blocks.setdefault(row["system_time"], Counter())[row["op"]] += 1
        days[row["system_time"]] = max(days.get(row["system_time"], ""), f"{row['event_time']:%Y-%m-%d}")
    numbers = [item.block.sequence_number for item in dataset.log() if item.block.event.KIND == "AddData"][
        ::-1
    ]
    most = max(accumulate(ops[0] - ops[1] for ops in blocks.values()))
    parts, kept = [], 0
    for index, (time, ops) in enumerate(blocks.items()):
        left = 20 + index * WIDTH
        added, gone, corrected = ops[0], ops[1], ops[3]
        y = float(BASE)
        for kind, count in (("old", kept - gone - corrected), ("corrected", corrected), ("new", added)):
            high = SCALE * count / most
            y -= high
            parts.append(f'<rect class="{kind}" x="{left}" y="{y:.1f}" width="90" height="{high:.1f}"/>')
        high = SCALE * gone / most
        parts.append(f'<rect class="gone" x="{left}" y="{BASE + 2}" width="90" height="{high:.1f}"/>')
        kept += added - gone
        texts = [("big", f"{kept:,} rows"), ("new", f"+{added:,} added")]
        texts += [("corrected", f"{corrected:,} corrected"), ("gone", f"{gone:,} gone")] if index else []
        parts += [
            f'<text class="{kind}" x="{left}" y="{BASE + 26 + 17 * line}">{text}</text>'
            for line, (kind, text) in enumerate(texts)
        ]
        parts.append(f'<text x="{left}" y="24" class="big">block {numbers[index]}</text>')
        parts.append(f'<text x="{left}" y="42" class="dim">{days[time]}</text>')
        if index:
            parts.append(f'<path d="M{left - 12} 20 h-70" marker-end="url(#to)"/>')
    head = '<marker id="to" markerWidth="8" markerHeight="8" refX="6" refY="4" orient="auto">'
    head += '<path d="M0 0 L7 4 L0 8"/></marker>'
    label = escape(f"History of {dataset.alias}: what each release added, corrected and took away")
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH * len(blocks)} {HEIGHT}" role="img" '
        f'aria-label="{label}">\n<style>{STYLE}</style>\n<defs>{head}</defs>\n{body}\n</svg>\n'
    )


if __name__ == "__main__":
    with odf.open(sys.argv[1]) as workspace:
        sys.stdout.write(draw(workspace[sys.argv[2]]))
