"""What keys were at a block, looked up in the slices up to it: where a changelog is not believed.

The rows of an interval say themselves what each key was before, unless they came with operations of their own
or from somebody whose rows nobody here has verified. Then a row is put in front of each touched key: a `-C`
with the values of the state at the block, or a `+A` where that has no such key. Whoever goes by the first row
of a key is right then. Source: RFC-036.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from odfchain.branch.row_diff import either, key_columns, key_hashes, take
from odfchain.digest.row_hash import Numbers
from odfchain.model.enums import OperationType
from odfchain.slices.rows_in_force import takes_back

_ABSENT, _PRESENT = OperationType.APPEND.code, OperationType.CORRECT_FROM.code
_FIRST, _LAST = "first", "last"
_ASKED = [(_FIRST, "min"), (_LAST, "max")]


def rows_in_front(rows: pa.Table, earlier: Iterable[pa.RecordBatch], key: Sequence[str]) -> pa.Table:
    """A row for each key of `rows` that says what it was after the `earlier` ones, in order of offset.

    All have offset and operation first, and then the data (`MergedColumns.rows`).
    """
    touched = key_columns(rows, key)
    asked = np.unique(key_hashes(touched))
    parts = (_only(pa.Table.from_batches([batch]), asked, key) for batch in earlier)
    known = pa.concat_tables([rows.schema.empty_table(), *parts])
    first, last = _places(touched, key_columns(known, key))
    there = last >= 0
    there[there] = ~takes_back(known.column(1).to_numpy()[last[there]])
    without = [
        rows.column(name) if name in key else pa.nulls(rows.num_rows, rows.schema.field(name).type)
        for name in rows.column_names[2:]
    ]
    nothing = pa.table(without, rows.column_names[2:])
    names = nothing.column_names
    values = either(there, take(known.select(names), np.where(there, last, -1)), take(nothing, first))
    operations = np.where(there, _PRESENT, _ABSENT).astype(np.uint8)
    system = [pa.array(np.zeros(len(first), np.uint64)), pa.array(operations)]
    return pa.table([*system, *values.columns], rows.schema)


def _places(touched: pa.Table, known: pa.Table) -> tuple[Numbers, Numbers]:
    """For each touched key, where it comes first, and where it was known last; -1 is nowhere."""
    first, last = (pa.array(np.arange(table.num_rows)) for table in (touched, known))
    tables = [
        touched.append_column(_FIRST, first).append_column(_LAST, pa.nulls(len(first), pa.int64())),
        known.append_column(_FIRST, pa.nulls(len(last), pa.int64())).append_column(_LAST, last),
    ]
    grouped = pa.concat_tables(tables).group_by(touched.column_names, use_threads=False)
    found = grouped.aggregate(_ASKED)
    places = [found.column(f"{name}_{how}").fill_null(-1).to_numpy() for name, how in _ASKED]
    chosen = places[0] >= 0
    return places[0][chosen], places[1][chosen]


def _only(rows: pa.Table, asked: Numbers, key: Sequence[str]) -> pa.Table:
    """The rows whose keys have one of these hashes."""
    return rows.filter(pa.array(np.isin(key_hashes(key_columns(rows, key)), asked)))
