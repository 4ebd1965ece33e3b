"""The rows in force after some slices: the one definition of a dataset's state.

- Rows count in order of offset. An offset occurs once in a chain, so there are no ties.
- `+A` and `+C` put a row in force, `-R` and `-C` take one out of force (`TAKES_BACK`).
- With a primary key, the row of each key with the largest offset is in force if it puts one in force: older
  ones are history, and a `-C` without its `+C` leaves nothing. Nulls are one key.
- Without a key, rows are compared by all columns but offset, operation and system time, and a missing
  column is null.
- In both, values compare as Spark compares them, at any depth: -0.0 is 0.0, all NaN are one value, and a
  map has no order.
- Without a key, what takes a row back takes the oldest equal one in force; where there is none it has no
  effect, now or later. Who only reads may ask for the net instead: there it counts against equal rows that
  come later. The two differ only where verification finds a fault (check 10).
- The state is what is in force, as it was recorded, in order of offset. So a state with its offsets and
  operations (RFC-018) may stand for the slices that it was computed from.

Here the rule is in Arrow and numpy; `odfchain.spark.types` (by a key) and `odfchain.transform.stream_flow`
(without one) have it as expressions of Spark's. Property tests hold them to each other. Source: specification
"Projection".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from odfchain.errors import BadInputError
from odfchain.odf.enums import TAKES_BACK, OperationType
from odfchain.odf.events import DatasetVocabulary, OffsetInterval
from odfchain.odf.row_hash import Numbers, hash_rows, same_floats
from odfchain.odf.times import Timestamp
from odfchain.slices.reader import fitted, open_parquet
from odfchain.text import one_line


@dataclass(frozen=True, slots=True)
class SliceFile:
    """A slice, or the state up to an offset, as a file that can be relied on."""

    at: Path | Callable[[], Path]
    vocabulary: DatasetVocabulary
    interval: OffsetInterval

    @property
    def is_here(self) -> bool:
        """True if the file is known to be on this machine."""
        return isinstance(self.at, Path)

    @property
    def path(self) -> Path:
        """The file; it may have to come first."""
        return self.at if isinstance(self.at, Path) else self.at()


def state(
    slices: Sequence[SliceFile],
    key: Sequence[str],
    schema: pa.Schema,
    *,
    upto: int | None = None,
    net: bool = False,
) -> pa.Table:
    """The rows in force after `slices` (oldest first) up to the offset `upto`, by a schema.

    An empty `key` is none. Columns that a slice lacks are null. In memory are the keys (without one, hashes
    of all rows) and the result; slices that have nothing in force are not read a second time.
    """
    return rows_at(slices, in_force(slices, key, upto=upto, net=net), schema)


def rows_at(slices: Sequence[SliceFile], offsets: Numbers, schema: pa.Schema) -> pa.Table:
    """The rows with these (ordered) offsets, by a schema; errors as `state`."""
    kept = [rows for item in slices for rows, _ in rows_with_offsets(item, offsets, schema)]
    return pa.Table.from_batches(kept, schema)


def in_force(
    slices: Sequence[SliceFile], key: Sequence[str], *, upto: int | None = None, net: bool = False
) -> Numbers:
    """The offsets of the rows in force, in order; as `state`."""
    if key:
        newest = _newest(rows for item in slices for rows in _keys(item, key, upto))
        return np.zeros(0, np.uint64) if newest is None else newest.offsets
    plain = [rows[1:] for item in slices for rows in rows_of(item, (), upto)]
    # nothing is taken back: all rows are in force, and no values need to be hashed
    if not any(takes_back(operations).any() for _, operations in plain):
        return np.sort(np.concatenate([np.zeros(0, np.uint64), *(offsets for offsets, _ in plain)]))
    hashed = [rows for item in slices for rows in hashed_rows(item, upto)]
    offsets, operations, hashes = (np.concatenate(parts) for parts in zip(*hashed, strict=True))
    walk = Walk.of(offsets, takes_back(operations), hashes)
    return np.sort(offsets[walk.net if net else walk.kept])


def takes_back(operations: Numbers) -> Numbers:
    """A mask: true where the operation takes another row back."""
    return np.isin(operations, TAKES_BACK)


def hashed_rows(
    item: SliceFile, upto: int | None = None, *, groups: Sequence[int] | None = None, exact: bool = False
) -> Iterator[tuple[Numbers, Numbers, Numbers]]:
    """(offsets, operations, hashes of the values as `PAIR`), by batch, of all row groups or of these."""
    for batch, offsets, operations in rows_of(item, None, upto, groups=groups):
        yield offsets, operations, hash_rows(batch, set(item.vocabulary.columns[:3]), exact=exact)


@dataclass(frozen=True, slots=True)
class Walk:
    """State of rows without a key, as masks over them in the order given."""

    kept: Numbers
    """Rows in force after all."""
    net: Numbers
    """`kept`, where a row that takes back what is not there counts against equal ones that come later."""
    unmatched: Numbers
    """Rows that take back what is not in force."""
    never_there: Numbers
    """Rows that take back what was never recorded before them."""

    @classmethod
    def of(cls, offsets: Numbers, back: Numbers, hashes: Numbers) -> Walk:
        """The walk over rows in order of offset; those with one hash are equal."""
        # equal rows together, each group in order of offset
        order = np.lexsort((offsets, hashes["low"], hashes["high"]))
        back, hashes = back[order], hashes[order]
        starts = np.concatenate(([True], hashes[1:] != hashes[:-1]))[: len(order)]
        group = np.cumsum(starts) - 1
        added = _within(group, starts, ~back)
        level = added - _within(group, starts, back)
        # the running minimum starts again with each group, which lies below all of those before it
        drop = group * (2 * len(order) + 1)
        lowest = np.minimum.accumulate(level - drop) + drop
        before = np.concatenate(([0], lowest))[: len(order)]
        unmatched = back & (level < np.minimum(np.where(starts, 0, before), 0))
        gone = np.bincount(group, weights=back & ~unmatched).astype(np.int64)
        asked = np.bincount(group, weights=back).astype(np.int64)
        kept, net = (~back & (added > number[group]) for number in (gone, asked))
        masks, given = (kept, net, unmatched, back & (added == 0)), np.argsort(order)
        return cls(*(mask[given] for mask in masks))


def _within(group: Numbers, starts: Numbers, counted: Numbers) -> Numbers:
    total = np.cumsum(counted)
    before: Numbers = (total - counted)[starts]
    found: Numbers = total - before[group]
    return found


def comparable(batch: pa.RecordBatch, name: str) -> list[pa.Array]:
    """A part of a key as columns that are equal where it is; lists and structures as hashes."""
    column = batch.column(name)
    if t.is_dictionary(column.type):
        column = column.dictionary_decode()
    if t.is_nested(column.type):
        # Arrow groups by plain columns only
        hashes = hash_rows(pa.RecordBatch.from_arrays([column], [name]), ())
        return [pa.array(hashes["high"]), pa.array(hashes["low"])]
    if t.is_floating(column.type):
        column = same_floats(column)
    return [column]


def rows_of(
    item: SliceFile,
    columns: Sequence[str] | None,
    upto: int | None,
    *,
    also: Sequence[str] = (),
    groups: Sequence[int] | None = None,
) -> Iterator[tuple[pa.RecordBatch, Numbers, Numbers]]:
    """(rows, offsets, operations), of all columns or of these and the system's, batch by batch.

    Columns that are wanted `also` may be missing.
    """
    names, first, last = item.vocabulary, item.interval.start, item.interval.end
    system = (names.offset_column, names.operation_type_column)
    # the whole slice is later
    if upto is not None and first > upto:
        return
    with open_parquet(item.path) as file:
        wanted = [*system, *(columns or ())]
        present = file.schema_arrow.names
        if missing := next((name for name in wanted if present.count(name) != 1), None):
            problem = "comes twice" if missing in present else "is not there"
            raise BadInputError(f"column `{one_line(missing)}` {problem}", file=str(item.path))
        wanted += [name for name in also if name in present]
        for batch in file.batches(None if columns is None else list(dict.fromkeys(wanted)), groups=groups):
            offsets, operations = (_whole(batch.column(name), item) for name in system)
            if len(offsets) and not first <= int(offsets.min()) <= int(offsets.max()) <= last:
                raise BadInputError("it has offsets that its block does not name", file=str(item.path))
            if upto is None or last <= upto:
                yield batch, offsets, operations
                continue
            chosen = offsets <= upto
            yield batch.filter(pa.array(chosen)), offsets[chosen], operations[chosen]


def _whole(column: pa.Array, item: SliceFile) -> Numbers:
    if column.null_count or not t.is_integer(column.type):
        raise BadInputError("an offset or an operation is not a number", file=str(item.path))
    found: Numbers = column.to_numpy(zero_copy_only=False).astype(np.uint64)
    return found


def rows_with_offsets(
    item: SliceFile, offsets: Numbers, schema: pa.Schema
) -> Iterator[tuple[pa.RecordBatch, Numbers]]:
    """(rows as the schema has them, their offsets), of these (ordered) offsets; errors as `state`."""
    low, high = np.searchsorted(offsets, [item.interval.start, item.interval.end + 1])
    if low == high:
        return
    with open_parquet(item.path) as file:
        present = file.schema_arrow.names
        name = item.vocabulary.offset_column
        for batch in file.batches([n for n in present if n in schema.names or n == name]):
            numbers = _whole(batch.column(name), item)
            chosen = np.isin(numbers, offsets[low:high])
            if chosen.any():
                yield fitted(batch.filter(pa.array(chosen)), schema), numbers[chosen]


# The rows in force by a key. Whenever `_AT_ONCE` has come together, what is not in force any more is let go.
# Keys become numbers, and the position of each number's last row is written down: nothing is sorted, and
# nothing joined.

# Rows that are gathered before only those in force are kept [bytes].
_AT_ONCE = 256 << 20
# Slices with so many rows at most [count] are read ahead; larger ones batch by batch.
_WHOLE = 1 << 20
# Whole numbers are their own codes where there are at most so many times as many as rows.
_SPREAD = 4


@dataclass(frozen=True, slots=True)
class _Rows:
    rows: pa.Table
    offsets: Numbers
    back: Numbers
    """Which ones take a row back."""


def newest_rows(slices: Sequence[SliceFile], key: Sequence[str], schema: pa.Schema) -> pa.Table:
    """As `state`, by a key that the schema has, from one reading: for answers, which are asked for often."""
    found = _newest(_read(slices, key, schema), key)
    return schema.empty_table() if found is None else found.rows


def _newest(parts: Iterator[_Rows], key: Sequence[str] | None = None) -> _Rows | None:
    gathered: list[_Rows] = []
    size, limit = 0, _AT_ONCE
    for rows in parts:
        gathered.append(rows)
        size += rows.rows.nbytes
        if size > limit:
            gathered = [_in_force(gathered, key)]
            size = gathered[0].rows.nbytes
            limit = size + max(_AT_ONCE, size)
    return _in_force(gathered, key) if gathered else None


def _read(slices: Sequence[SliceFile], key: Sequence[str], schema: pa.Schema) -> Iterator[_Rows]:
    threads = pa.cpu_count()
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[list[_Rows]]] = deque()
        for item in slices:
            if item.interval.count > _WHOLE:
                while waiting:
                    yield from waiting.popleft().result()
                yield from _rows(item, key, schema)
                continue
            # as many slices are decoded at a time as there are cores, and handed on in their order
            waiting.append(pool.submit(lambda item: list(_rows(item, key, schema)), item))
            if len(waiting) > threads:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()


def _keys(item: SliceFile, key: Sequence[str], upto: int | None) -> Iterator[_Rows]:
    for batch, offsets, operations in rows_of(item, key, upto):
        parts = [part for name in key for part in comparable(batch, name)]
        names = [str(index) for index in range(len(parts))]
        yield _Rows(pa.table(parts, names), offsets, takes_back(operations))


def _rows(item: SliceFile, key: Sequence[str], schema: pa.Schema) -> Iterator[_Rows]:
    for batch, offsets, operations in rows_of(item, key, None, also=schema.names):
        rows = pa.Table.from_batches([fitted(batch, schema)])
        yield _Rows(rows, offsets, takes_back(operations))


def _in_force(gathered: Sequence[_Rows], key: Sequence[str] | None) -> _Rows:
    rows = pa.concat_tables([part.rows for part in gathered], promote_options="permissive")
    offsets = np.concatenate([part.offsets for part in gathered])
    back = np.concatenate([part.back for part in gathered])
    if len(offsets) > 1 and not (offsets[1:] > offsets[:-1]).all():  # a checkpoint is in order of its key
        order = np.argsort(offsets, kind="stable")
        rows, offsets, back = rows.take(pa.array(order)), offsets[order], back[order]
    codes, count = codes_of(rows, rows.column_names if key is None else key)
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


# The rows in force at an event time: what was true then, by all that is known now.
#
# Each row sets the entry of its key and its event time, in order of offset: `+A` and `+C` put themselves
# there, `-R` says that the key is absent from then on, and `-C` deletes its entry, unless its `+C` has a
# later time: then the old value was true until then. Of each key the entry with the largest time that is
# not after the asked one is in force. Rows without an event time have no place in it. Source: specification
# "Projection".

# Times are compared in microseconds, in nanoseconds where the dataset declares them [1/s].
_MICROS, _NANOS = 10**6, 10**9
_FROM, _TO = OperationType.CORRECT_FROM.code, OperationType.CORRECT_TO.code


def state_at(slices: Sequence[SliceFile], key: Sequence[str], schema: pa.Schema, time: Timestamp) -> pa.Table:
    """The rows in force at an event time; without a key those of the state that are not later.

    In memory are hashes of all keys and the result. Errors as `odfchain.slices.state.state`.
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
    number = time.epoch_ns // (_NANOS // scale)
    return max(-(2**63), min(2**63 - 1, number))


# What is taken back was there: a retraction, or the old half of a correction, equals a row that is in
# force.
#
# Commits of what an engine or a changelog brought and check 10 of verification use this one rule. Slices are
# decoded once more for it, and what is kept are hashes of the rows that are taken back and of the rows that
# look like them, so memory follows the number of retractions. Source: specification "Retractions and
# Corrections".


def taken_back_in_vain(
    slices: Sequence[SliceFile], asked: Sequence[SliceFile], *, in_force: bool = True
) -> Numbers:
    """Offsets of the rows of `asked` that take back what is not in force, in order.

    `slices` are all of the dataset, oldest first, `asked` some of them. Without `in_force` the row that is
    taken back may have been taken back before.
    """
    taken = []
    for item in asked:
        for offsets, operations, hashes in hashed_rows(item):
            if (back := takes_back(operations)).any():
                taken.append((offsets[back], hashes[back]))
    if not taken:
        return np.zeros(0, dtype=np.uint64)
    wanted = np.unique(np.concatenate([hashes for _, hashes in taken]))
    alike: list[tuple[Numbers, Numbers, Numbers]] = []
    last = max(int(offsets[-1]) for offsets, _ in taken)
    for item in slices:
        if item.interval.start > last:
            break
        for offsets, operations, pairs in hashed_rows(item):
            # one half first: most rows are taken back by nothing
            like = np.isin(pairs["low"], wanted["low"])
            if like.any():
                like[like] = np.isin(pairs[like], wanted)
                alike.append((offsets[like], takes_back(operations[like]), pairs[like]))
    every, backs, pairs = (np.concatenate(parts) for parts in zip(*alike, strict=True))
    walk = Walk.of(every, backs, pairs)
    wrong = np.sort(every[walk.unmatched if in_force else walk.never_there])
    within = np.zeros(len(wrong), dtype=bool)
    for item in asked:
        within |= (wrong >= item.interval.start) & (wrong <= item.interval.end)
    found: Numbers = wrong[within]
    return found
