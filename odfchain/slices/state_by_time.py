"""The rows in force at an event time: what was true then, by all that is known now.

Each row sets the entry of its key and its event time, in order of offset: `+A` and `+C` put themselves there,
`-R` says that the key is absent from then on, and `-C` deletes its entry, unless its `+C` has a later time:
then the old value was true until then. Of each key the entry with the largest time that is not after the
asked one is in force. Rows without an event time have no place in it. Source: specification "Projection".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from odfchain.digest.row_hash import Numbers, hash_rows
from odfchain.errors import BadInputError
from odfchain.model.enums import OperationType
from odfchain.model.timestamp import Timestamp
from odfchain.slices.rows_in_force import SliceFile, comparable, in_force, rows_at, rows_of, takes_back

_MICROS, _NANOS = 10**6, 10**9
"""Times are compared in microseconds, in nanoseconds where the dataset declares them [1/s]."""
_FROM, _TO = OperationType.CORRECT_FROM.code, OperationType.CORRECT_TO.code


def state_at(slices: Sequence[SliceFile], key: Sequence[str], schema: pa.Schema, time: Timestamp) -> pa.Table:
    """The rows in force at an event time; without a key those of the state that are not later.

    In memory are hashes of all keys and the result. Errors as `odfchain.slices.rows_in_force.state`.
    """
    if not slices:
        return schema.empty_table()
    name = slices[-1].vocabulary.event_time_column
    scale = _NANOS if getattr(schema.field(name).type, "unit", "s") == "ns" else _MICROS
    if key:
        return rows_at(slices, _of_keys(slices, key, time, scale), schema)
    rows = rows_at(slices, in_force(slices, (), net=True), schema)
    times, valid = _times(rows.column(name).combine_chunks(), scale)
    return rows.filter(pa.array(valid & (times <= _number(time, scale))))


def _of_keys(slices: Sequence[SliceFile], key: Sequence[str], time: Timestamp, scale: int) -> Numbers:
    found = [rows for item in slices for rows in _entries(item, key, scale)]
    if not found:
        return np.zeros(0, dtype=np.uint64)
    keys, times, valid, offsets, operations = (np.concatenate(parts) for parts in zip(*found, strict=True))
    order = np.lexsort((offsets, keys["low"], keys["high"]))
    keys, times, valid = keys[order], times[order], valid[order]
    offsets, operations = offsets[order], operations[order]
    moved = np.zeros(len(keys), dtype=bool)
    moved[:-1] = (
        (operations[:-1] == _FROM)
        & (operations[1:] == _TO)
        & (keys[1:] == keys[:-1])
        & valid[1:]
        & (times[1:] > times[:-1])
    )
    chosen = valid & ~moved & (times <= _number(time, scale))
    keys, times, offsets, operations = keys[chosen], times[chosen], offsets[chosen], operations[chosen]
    order = np.lexsort((offsets, times, keys["low"], keys["high"]))
    keys, times, offsets, operations = keys[order], times[order], offsets[order], operations[order]
    written = np.ones(len(keys), dtype=bool)
    written[:-1] = (keys[1:] != keys[:-1]) | (times[1:] != times[:-1])
    written &= operations != _FROM
    keys, offsets, operations = keys[written], offsets[written], operations[written]
    newest = np.ones(len(keys), dtype=bool)
    newest[:-1] = keys[1:] != keys[:-1]
    return np.sort(offsets[newest & ~takes_back(operations)])


def _entries(item: SliceFile, key: Sequence[str], scale: int) -> Iterator[tuple[Numbers, ...]]:
    """(keys, event times, whether there is one, offsets, operations), batch by batch."""
    name = item.vocabulary.event_time_column
    for batch, offsets, operations in rows_of(item, [*key, name], None):
        parts = [part for column in key for part in comparable(batch, column)]
        hashes = hash_rows(pa.RecordBatch.from_arrays(parts, [str(i) for i in range(len(parts))]), ())
        try:
            times, valid = _times(batch.column(name), scale)
        except BadInputError as error:
            raise BadInputError(error.message, file=str(item.path)) from None
        yield hashes, times, valid, offsets, operations


def _times(column: pa.Array, scale: int) -> tuple[Numbers, Numbers]:
    """(event times [1/scale s since the epoch], which are not null)."""
    if not (t.is_timestamp(column.type) or t.is_date(column.type)):
        raise BadInputError("its event times are neither times nor dates")
    unit = column.type.unit if t.is_timestamp(column.type) else "s"
    own = {"s": 1, "ms": 10**3, "us": _MICROS, "ns": _NANOS}[unit]
    numbers = column.cast(pa.timestamp(unit, getattr(column.type, "tz", None))).cast(pa.int64())
    values = numbers.fill_null(0).to_numpy(zero_copy_only=False)
    if own > scale:
        return values // (own // scale), np.asarray(pc.is_valid(column))
    # what does not fit is later, or earlier, than every time that can be asked for
    most = np.iinfo(np.int64).max // (scale // own)
    scaled: Numbers = np.clip(values, -most, most) * (scale // own)
    return scaled, np.asarray(pc.is_valid(column))


def _number(time: Timestamp, scale: int) -> int:
    """A time in the same unit."""
    number = time.epoch_ns // (_NANOS // scale)
    return max(-(2**63), min(2**63 - 1, number))
