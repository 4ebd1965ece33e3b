"""Rows with a key of two columns, and what becomes of them: the inputs of the merge benchmarks.

For `rows` recorded rows a new snapshot lacks a tenth, changes two tenths in the compared columns and adds a
tenth; a new ledger file repeats a tenth of the recorded keys and brings half as many new ones. Columns that
are not compared differ in every row of a new file, which must not count as a change.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv

COLUMNS = {
    "region": "STRING NOT NULL",
    "id": "BIGINT NOT NULL",
    "price": "DOUBLE",
    "status": "STRING",
    "event_time": "TIMESTAMP",
    "note": "STRING",
}
KEY = ("region", "id")
COMPARED = ("price", "status")
SCHEMA = pa.schema(
    {
        "region": pa.string(),
        "id": pa.int64(),
        "price": pa.float64(),
        "status": pa.string(),
        "event_time": pa.timestamp("us", "UTC"),
        "note": pa.string(),
    }
)

FIRST_DAY = 1_577_836_800  # 2020-01-01 [s]
REMOVED, CHANGED = (0,), (1, 2)
"""Last digits of the ids that a new snapshot lacks or changes."""

Ints = npt.NDArray[np.int64]


def recorded(rows: int) -> pa.Table:
    """The rows that are there before, in no order."""
    return _table(np.arange(rows), release=0)


def next_snapshot(rows: int) -> pa.Table:
    """All rows that are there after the changes."""
    ids = np.arange(rows + rows // 10)
    return _table(ids[(ids >= rows) | ~np.isin(ids % 10, REMOVED)], release=1, changed_below=rows)


def next_ledger(rows: int) -> pa.Table:
    """New rows, and some that are recorded already."""
    return _table(np.arange(rows - rows // 10, rows + rows // 2), release=1)


def snapshot_counts(rows: int) -> dict[str, int]:
    """The operations that the new snapshot amounts to."""
    return {"+A": rows // 10, "-R": rows // 10, "-C": rows // 5, "+C": rows // 5}


def ledger_counts(rows: int) -> dict[str, int]:
    """The operations that the new ledger file amounts to."""
    return {"+A": rows // 2}


def write_csv(table: pa.Table, path: str) -> None:
    """The table as CSV, with times as RFC 3339 has them."""
    index = table.schema.get_field_index("event_time")
    text = pc.strftime(table["event_time"].cast(pa.timestamp("s")), format="%Y-%m-%dT%H:%M:%SZ")
    layout = pcsv.WriteOptions(quoting_style="none")
    pcsv.write_csv(table.set_column(index, "event_time", text), path, layout)


def read_csv(path: str) -> pa.Table:
    """The table that `write_csv` wrote."""
    return pcsv.read_csv(path, convert_options=pcsv.ConvertOptions(column_types=SCHEMA))


def _table(ids: Ints, *, release: int, changed_below: int = 0) -> pa.Table:
    ids = np.random.default_rng(17 + release).permutation(ids)
    changed = np.isin(ids % 10, CHANGED) & (ids < changed_below)
    words = pa.array(["open", "paid", "sent", "done"])
    seconds = FIRST_DAY + ids % 86_400 + release * 86_400
    return pa.table(
        {
            "region": pa.array([f"region {n}" for n in range(50)]).take(pa.array(ids % 50)),
            "id": ids,
            # each changed row differs in one of the compared columns, now in this, now in that
            "price": (ids * 7_919 % 100_000) / 100 + (changed & (ids % 10 == CHANGED[0])),
            "status": words.take(pa.array((ids % 3) + (changed & (ids % 10 == CHANGED[1])))),
            "event_time": pa.array(seconds * 1_000_000).cast(pa.timestamp("us", "UTC")),
            "note": pa.array([f"note {n} of release {release}" for n in range(1_000)]).take(
                pa.array(ids % 1_000)
            ),
        },
        schema=SCHEMA,
    )
