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


def schema_of(kind: str) -> str:
    """The columns of a source with this merge strategy, as manifests spell them."""
    return json.dumps([*(["op INT"] if kind in ("changelog", "upsert") else []), *COLUMNS])


def inputs(kind: str, draw: random.Random, files: int, *, faults: bool = False) -> list[str]:
    """Newline-delimited rows of files; keys come again, in one file and in several.

    With faults some rows contradict, some event times have to be looked up, and some lines are no rows.
    """
    texts, there = [], list[dict[str, Any]]()
    once = {"ledger", "snapshot"} if faults else {"ledger", "snapshot", "upsert"}
    for _ in range(files):
        found = []
        for key in [draw.randrange(12) for _ in range(draw.randrange(0 if faults else 1, 14))]:
            made = row(draw, key)
            if kind == "changelog":
                back = bool(there) and draw.random() < 0.3
                made = there.pop(draw.randrange(len(there))) if back else made
                there += [] if back else [made]
                hidden = {"event_time": None} if faults and back and draw.random() < 0.1 else {}
                found.append({"op": int(back)} | made | hidden)
            else:
                found.append(({"op": draw.randrange(2)} if kind == "upsert" else {}) | made)
        alone = not faults or draw.random() < 0.9
        if alone and kind in once:
            first = dict[tuple[Any, ...], dict[str, Any]]()
            for made in found:
                first.setdefault((made["key"], made["part"]), made)
            found = list(first.values())
        found += found[:1] * (kind == "snapshot")
        texts.append("".join(f"{json.dumps(made)}\n" for made in found))
        if faults and draw.random() < 0.05:
            texts[-1] += draw.choice(['{"key": "x"}\n', "{\n", '{"key": null, "part": null}\n'])
    return texts
