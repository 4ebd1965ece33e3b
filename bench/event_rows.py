"""Rows with a key, a time, texts and numbers, as CSV: any part of them, in any release of it.

What a row has follows from its key and the release alone, so the same arguments give the same file.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv

COLUMNS = {
    "id": "BIGINT NOT NULL",
    "event_time": "TIMESTAMP",
    "city": "STRING",
    "kind": "STRING",
    "amount": "DOUBLE",
    "count": "INT",
}
MERGES = {
    "append": "{kind: Append}",
    "snapshot": "{kind: Snapshot, primaryKey: [id]}",
    "upsert": "{kind: UpsertStream, primaryKey: [id]}",
}
CHUNK = 1_000_000
_CITIES = pa.array([f"city {n}" for n in range(5_000)])
_KINDS = pa.array(["plain", "express", "bulk"])


def write_csv(path: Path, keys: range, *, release: int = 0, share: float = 1.0) -> None:
    """The rows of these keys; in a later release a share of all rows has another amount."""
    layout = pcsv.WriteOptions(quoting_style="none")
    schema = _rows(np.arange(1), 0, 0).schema
    with path.open("wb") as stream, pcsv.CSVWriter(stream, schema, write_options=layout) as writer:
        for low in range(keys.start, keys.stop, CHUNK):
            ids = np.arange(low, min(low + CHUNK, keys.stop))
            writer.write_table(_rows(ids, release, share))


def _rows(ids: np.ndarray, release: int, share: float) -> pa.Table:
    mixed = ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed >> np.uint64(20)).astype(np.int64)
    corrected = (mixed + 101 * release) % 1_000 < share * 1_000
    times = pa.array(1_577_836_800 + ids).cast(pa.timestamp("s", "UTC"))
    return pa.table(
        {
            "id": ids,
            "event_time": pc.strftime(times, format="%Y-%m-%dT%H:%M:%SZ"),
            "city": _CITIES.take(pa.array(mixed % 5_000)),
            "kind": _KINDS.take(pa.array(mixed // 7 % 3)),
            "amount": (mixed // 11 % 1_000_000) / 1e6 + np.where(corrected, release, 0),
            "count": mixed // 13 % 1_000,
        }
    )
