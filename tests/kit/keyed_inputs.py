"""Rows with a key of two columns and values that are hard to compare, for every merge strategy."""

from __future__ import annotations

import json
import random
from typing import Any

KEYED = "primaryKey: [key, part]"
MERGES = {
    "append": "{kind: Append}",
    "ledger": f"{{kind: Ledger, {KEYED}}}",
    "snapshot": f"{{kind: Snapshot, {KEYED}}}",
    "changelog": f"{{kind: ChangelogStream, {KEYED}}}",
    "upsert": f"{{kind: UpsertStream, {KEYED}}}",
}
COLUMNS = (
    "key BIGINT",
    "part STRING",
    "event_time TIMESTAMP",
    "day DATE",
    "price DOUBLE",
    "share FLOAT",
    "amount DECIMAL(10, 2)",
    "tags ARRAY<STRING>",
    "place STRUCT<x: DOUBLE, names: ARRAY<STRING>>",
    "sure BOOLEAN",
)
TIMES = [None, "2020-01-01T00:00:00Z", "1969-12-31T23:59:59.999Z", "2020-01-01T00:00:00.001Z"]
FLOATS = [None, "NaN", "-0.0", "0", "Infinity", "1e308", "0.1"]


def row(draw: random.Random, key: int) -> dict[str, Any]:
    return {
        "key": key,
        "part": draw.choice(["", "a", "ä", "\u0000", "a b"]),
        "event_time": draw.choice(TIMES),
        "day": draw.choice([None, "0001-01-01", "2020-02-29"]),
        "price": draw.choice(FLOATS),
        "share": draw.choice([None, "NaN", "-0.0", "0", "0.1"]),
        "amount": draw.choice([None, "1.10", "-0.01", "12345678.90"]),
        "tags": draw.choice([None, [], ["x", "ÿ"]]),
        "place": draw.choice([None, {"x": "NaN", "names": ["b", ""]}, {"names": []}, {}]),
        "sure": draw.choice([None, True, False]),
    }


def releases(kind: str) -> list[str]:
    """Newline-delimited rows of two inputs; half of the keys come again, most of them changed."""
    draw, texts = random.Random(kind), []
    for keys in (range(160), range(80, 200)):
        operation = {"op": 0} if kind in ("changelog", "upsert") else {}
        rows = [operation | row(draw, key) | {"part": str(key % 7)} for key in keys]
        draw.shuffle(rows)
        texts.append("".join(f"{json.dumps(each)}\n" for each in rows))
    return texts
