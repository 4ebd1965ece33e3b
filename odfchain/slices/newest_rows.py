"""The rows in force by a key, from one reading of the slices: for answers, which are asked for often.

They are those of `odfchain.slices.rows_in_force.state`, by the same rule, and a property test holds the two
to each other. There the keys are read first, so that memory has the keys and the result; here all columns
are, and whenever `_AT_ONCE` has come together what is not in force any more is let go. Keys become numbers,
and the position of each number's last row is written down: nothing is sorted, and nothing joined.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from odfchain.digest.row_hash import Numbers
from odfchain.slices.reader import fitted
from odfchain.slices.rows_in_force import SliceFile, comparable, rows_of, takes_back

_AT_ONCE = 256 << 20
"""Rows that are gathered before only those in force are kept [bytes]."""
_WHOLE = 1 << 20
"""Slices with so many rows at most [count] are read ahead; larger ones batch by batch."""
_SPREAD = 4
"""Whole numbers are their own codes where there are at most so many times as many as rows."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows in the asked schema, with what decides about them."""

    rows: pa.Table
    offsets: Numbers
    back: Numbers
    """Which ones take a row back."""


def newest_rows(slices: Sequence[SliceFile], key: Sequence[str], schema: pa.Schema) -> pa.Table:
    """The rows in force after `slices` (oldest first) by a key, which the schema has, in order of offset.

    Columns that a slice lacks are null, but for those of the key. Errors as `rows_in_force.state`.
    """
    gathered: list[_Rows] = []
    size, limit = 0, _AT_ONCE
    for rows in _read(slices, key, schema):
        gathered.append(rows)
        size += rows.rows.nbytes
        if size > limit:
            gathered = [_in_force(gathered, key)]
            size = gathered[0].rows.nbytes
            limit = size + max(_AT_ONCE, size)
    return _in_force(gathered, key).rows if gathered else schema.empty_table()


def _read(slices: Sequence[SliceFile], key: Sequence[str], schema: pa.Schema) -> Iterator[_Rows]:
    """All rows, in order of slices; as many slices are read at a time as there are cores."""
    threads = pa.cpu_count()
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[list[_Rows]]] = deque()
        for item in slices:
            if item.interval.count > _WHOLE:
                while waiting:
                    yield from waiting.popleft().result()
                yield from _rows(item, key, schema)
                continue
            waiting.append(pool.submit(lambda item: list(_rows(item, key, schema)), item))
            if len(waiting) > threads:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()


def _rows(item: SliceFile, key: Sequence[str], schema: pa.Schema) -> Iterator[_Rows]:
    for batch, offsets, operations in rows_of(item, key, None, also=schema.names):
        rows = pa.Table.from_batches([fitted(batch, schema)])
        yield _Rows(rows, offsets, takes_back(operations))


def _in_force(gathered: Sequence[_Rows], key: Sequence[str]) -> _Rows:
    """Of each key the row with the largest offset, unless that takes one back."""
    rows = pa.concat_tables(part.rows for part in gathered)
    offsets = np.concatenate([part.offsets for part in gathered])
    back = np.concatenate([part.back for part in gathered])
    if len(offsets) > 1 and not (offsets[1:] > offsets[:-1]).all():  # a checkpoint is in order of its key
        order = np.argsort(offsets, kind="stable")
        rows, offsets, back = rows.take(pa.array(order)), offsets[order], back[order]
    codes, count = codes_of(rows, key)
    last = np.full(count, -1, dtype=np.int64)
    last[codes] = np.arange(len(codes))  # of several with one code the last one stays
    kept = np.zeros(len(codes), dtype=bool)
    kept[last[last >= 0]] = True
    kept &= ~back
    return _Rows(rows.filter(pa.array(kept)), offsets[kept], back[kept])


def codes_of(rows: pa.Table, key: Sequence[str]) -> tuple[Numbers, int]:
    """(a number for each row, equal where the key is; a number that is larger than all of these)."""
    parts: list[tuple[pa.Array, ...]] = []
    for name in key:
        pieces = [comparable(batch, name) for batch in rows.select([name]).to_batches()]
        parts += zip(*pieces, strict=True)
    codes, count = np.zeros(len(rows), dtype=np.int64), 1
    for part in parts:
        numbers, many = _codes(pa.chunked_array(list(part)))
        codes, count = (numbers, many) if count == 1 else (codes * many + numbers, count * many)
        if count > _SPREAD * max(len(codes), 1):
            codes, count = _codes(pa.chunked_array([pa.array(codes)]))
    return codes, count


def _codes(column: pa.ChunkedArray) -> tuple[Numbers, int]:
    if t.is_null(column.type):
        return np.zeros(len(column), dtype=np.int64), 1
    if t.is_integer(column.type) and (found := _as_they_are(column)) is not None:
        return found
    encoded = column.dictionary_encode(null_encoding="encode")
    # the chunks of one column have one dictionary
    count = len(encoded.chunk(0).dictionary) if encoded.num_chunks else 0
    numbers = [chunk.indices.to_numpy(zero_copy_only=False) for chunk in encoded.chunks]
    return np.concatenate([np.zeros(0, dtype=np.int64), *numbers]), max(count, 1)


def _as_they_are(column: pa.ChunkedArray) -> tuple[Numbers, int] | None:
    """Whole numbers less the smallest of them, a null after all; None where they lie far apart."""
    found = pc.min_max(column)
    low, high = found["min"].as_py(), found["max"].as_py()
    if low is None or high - low > _SPREAD * len(column) or high >= 1 << 63:
        return None
    numbers = column.cast(pa.int64()).fill_null(high + 1 if column.null_count else high)
    return numbers.to_numpy() - low, high - low + 2
