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

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby, islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from odfchain.errors import BadInputError
from odfchain.odf.enums import TAKES_BACK, OperationType
from odfchain.odf.events import DatasetVocabulary, OffsetInterval
from odfchain.odf.row_hash import Numbers, comparable, hash_rows, numbered, same_cells
from odfchain.odf.times import Timestamp
from odfchain.slices.reader import fitted, open_parquet, read_ahead
from odfchain.text import one_line


@dataclass(frozen=True, slots=True)
class KeptRows:
    """The rows of a file, as `ParquetSource` gives them."""

    schema_arrow: pa.Schema
    rows: Sequence[pa.RecordBatch]

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """All of them, or some columns."""
        return (batch if columns is None else batch.select(columns) for batch in self.rows)


@dataclass(frozen=True, slots=True)
class SliceFile:
    """A slice, or the state up to an offset, as a file that can be relied on."""

    at: Path | Callable[[], Path]
    vocabulary: DatasetVocabulary
    interval: OffsetInterval
    kept: KeptRows | None = field(default=None, compare=False, repr=False)
    """All of its rows, where they were read before."""

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

    An empty `key` is none. Columns that a slice lacks are null. In memory are the result and what `in_force`
    takes; slices with nothing in force are not read a second time.
    """
    return rows_at(slices, in_force(slices, key, upto=upto, net=net), schema)


def rows_at(slices: Sequence[SliceFile], offsets: Numbers, schema: pa.Schema) -> pa.Table:
    """The rows with these (ordered) offsets, by a schema; errors as `state`."""
    kept = [rows for item in slices for rows, _ in rows_with_offsets(item, offsets, schema)]
    return pa.Table.from_batches(kept, schema)


def in_force(
    slices: Sequence[SliceFile], key: Sequence[str], *, upto: int | None = None, net: bool = False
) -> Numbers:
    """The offsets of the rows in force, in order; as `state`.

    In memory are they (without a key, of all rows that were ever in force) and, for one pass over the slices
    after the other, `_AT_ONCE` of keys, or of rows that are taken back and of others that may equal them.
    """
    added = [np.zeros(0, np.uint64)]
    if key:
        for share in _shares(lambda: _types(slices, key, upto)):
            newest = _newest((rows for item in slices for rows in _keys(item, key, upto)), key, share=share)
            added += [] if newest is None else [newest.offsets]
        return np.sort(np.concatenate(added))
    took = dict[SliceFile, None]()
    for item in slices:
        for _, offsets, operations in rows_of(item, (), upto):
            back = takes_back(operations)
            added.append(offsets[~back])
            if back.any():
                took[item] = None
    found = np.sort(np.concatenate(added))
    kept = np.ones(len(found), dtype=bool)
    del added
    for offsets, walk in _walks(slices, list(took), upto):
        gone = offsets[~(walk.net if net else walk.kept)]
        at = np.searchsorted(found, gone)
        at, gone = at[at < len(found)], gone[at < len(found)]
        kept[at[found[at] == gone]] = False
    return found[kept]


def takes_back(operations: Numbers) -> Numbers:
    """A mask: true where the operation takes another row back."""
    return np.isin(operations, TAKES_BACK)


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
    def of(cls, offsets: Numbers, back: Numbers, kinds: Numbers) -> Walk:
        """The walk over rows in any order; those of one number are equal."""
        # equal rows together, each group in order of offset
        order = np.lexsort((offsets, kinds))
        back, kinds = back[order], kinds[order]
        starts = np.concatenate(([True], kinds[1:] != kinds[:-1]))[: len(order)]
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


def last_of_each(kinds: Numbers, wanted: Numbers) -> Numbers:
    """A mask: of the rows of each kind the last ones, as many as are wanted of it."""
    order, count = np.argsort(kinds, kind="stable"), np.bincount(kinds, minlength=len(wanted))
    rank = np.empty(len(kinds), dtype=np.int64)
    rank[order] = np.arange(len(kinds)) - np.repeat(np.cumsum(count) - count, count)
    found: Numbers = rank >= (count - wanted)[kinds]
    return found


def _within(group: Numbers, starts: Numbers, counted: Numbers) -> Numbers:
    total = np.cumsum(counted)
    before: Numbers = (total - counted)[starts]
    found: Numbers = total - before[group]
    return found


def rows_of(
    item: SliceFile, columns: Sequence[str] | None, upto: int | None, *, also: Sequence[str] = ()
) -> Iterator[tuple[pa.RecordBatch, Numbers, Numbers]]:
    """(rows, offsets, operations) by batches, of all or of these columns; `also` ones may be missing."""
    names, first, last = item.vocabulary, item.interval.start, item.interval.end
    system = (names.offset_column, names.operation_type_column)
    # the whole slice is later
    if upto is not None and first > upto:
        return
    with contextlib.nullcontext(item.kept) if item.kept else open_parquet(item.path) as file:
        wanted = [*system, *(columns or ())]
        present = file.schema_arrow.names
        if missing := next((name for name in wanted if present.count(name) != 1), None):
            problem = "comes twice" if missing in present else "is not there"
            raise BadInputError(f"column `{one_line(missing)}` {problem}", file=str(item.path))
        wanted += [name for name in also if name in present]
        for batch in file.batches(None if columns is None else list(dict.fromkeys(wanted))):
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
    wanted = offsets[low:high]
    with open_parquet(item.path) as file:
        present = file.schema_arrow.names
        name = item.vocabulary.offset_column
        for batch in file.batches([n for n in present if n in schema.names or n == name]):
            numbers = _whole(batch.column(name), item)
            chosen = wanted[np.minimum(np.searchsorted(wanted, numbers), len(wanted) - 1)] == numbers
            if chosen.any():
                yield fitted(batch.filter(pa.array(chosen)), schema), numbers[chosen]


# The rows in force by a key. Whenever `_AT_ONCE` has come together, what is not in force any more is let go.
# Who asks for offsets need not keep all keys: where those in force are more than half of it, a pass goes
# on with half of all keys, by their hash, and another one reads the slices again for the others.
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

    @classmethod
    def joined(cls, parts: Sequence[_Rows]) -> _Rows:
        """One after the other; a column that some lack is null there."""
        rows = pa.concat_tables([part.rows for part in parts], promote_options="permissive")
        offsets, back = (np.concatenate([getattr(p, n) for p in parts]) for n in ("offsets", "back"))
        return cls(rows, offsets, back)

    def only(self, chosen: Numbers) -> _Rows:
        return _Rows(self.rows.filter(pa.array(chosen)), self.offsets[chosen], self.back[chosen])


@dataclass(slots=True)
class _Share:
    """The rows of one pass: those whose hash leaves `rest` when it is divided by `parts`."""

    types: Callable[[], pa.Schema] | None
    """The types that the columns have together, where those of a slice may be narrower."""
    rest: int = 0
    parts: int = 1
    others: list[_Share] = field(default_factory=list)

    def only(self, rows: _Rows) -> _Rows:
        if self.parts == 1:
            return rows
        wide = rows.rows if self.types is None else rows.rows.cast(self.types(), safe=False)
        hashes = [hash_rows(batch, ())["low"] for batch in wide.to_batches()]
        return rows.only(np.concatenate([np.zeros(0, np.uint64), *hashes]) % self.parts == self.rest)

    def halve(self) -> None:
        self.others.append(_Share(self.types, self.rest + self.parts, 2 * self.parts))
        self.parts *= 2


def _shares(types: Callable[[], pa.Schema] | None = None) -> Iterator[_Share]:
    """Shares that are all rows together, the first one all of them; one that is halved leaves another."""
    waiting = [_Share(types and functools.cache(types))]
    while waiting:
        share = waiting.pop()
        yield share
        waiting += share.others


def newest_rows(slices: Sequence[SliceFile], key: Sequence[str], schema: pa.Schema) -> pa.Table:
    """As `state`, by a key that the schema has, from one reading: for answers, which are asked for often."""
    found = _newest(_read(slices, key, schema), key)
    return schema.empty_table() if found is None else found.rows


def newest_of(
    batches: Iterable[pa.RecordBatch],
    key: Sequence[str],
    vocabulary: DatasetVocabulary,
    *,
    retracted: bool = False,
) -> tuple[pa.Table, Numbers] | None:
    """The rows in force by a key, or (`retracted`) last rows of others too; which take back. None if none."""
    offset, operation = vocabulary.offset_column, vocabulary.operation_type_column

    def read() -> Iterator[_Rows]:
        for batch in batches:
            numbers, codes = (batch.column(n).to_numpy(zero_copy_only=False) for n in (offset, operation))
            yield _Rows(pa.Table.from_batches([batch]), numbers, takes_back(codes))

    found = _newest(read(), key, retracted=retracted)
    return None if found is None else (found.rows, found.back)


def _newest(
    parts: Iterator[_Rows],
    key: Sequence[str] | None = None,
    *,
    retracted: bool = False,
    share: _Share | None = None,
) -> _Rows | None:
    gathered: list[_Rows] = []
    size, limit = 0, _AT_ONCE
    for part in parts:
        rows = part if share is None else share.only(part)
        gathered.append(rows)
        size += rows.rows.nbytes
        if size > limit:
            rows = _in_force(gathered, key, retracted)
            if share is not None and len(rows.back) > 1 and rows.rows.nbytes > _AT_ONCE // 2:
                share.halve()
                rows = share.only(rows)
            gathered, size = [rows], rows.rows.nbytes
            limit = max(_AT_ONCE, 2 * size)
    return _in_force(gathered, key, retracted) if gathered else None


def _read(slices: Sequence[SliceFile], key: Sequence[str], schema: pa.Schema) -> Iterator[_Rows]:
    each = functools.partial(_rows, key=key, schema=schema)
    # batches of large slices are not gathered
    for is_large, items in groupby(slices, lambda item: item.interval.count > _WHOLE):
        if is_large:
            yield from chain.from_iterable(map(each, items))
            continue
        yield from read_ahead(each, items)


def _keys(item: SliceFile, key: Sequence[str], upto: int | None) -> Iterator[_Rows]:
    for batch, offsets, operations in rows_of(item, key, upto):
        columns = [batch.column(name) for name in key]
        # numbers stay as they are: later slices may have wider ones
        bare = [comparable(c) if t.is_nested(c.type) or t.is_dictionary(c.type) else c for c in columns]
        yield _Rows(pa.table(bare, list(key)), offsets, takes_back(operations))


def _types(slices: Sequence[SliceFile], key: Sequence[str], upto: int | None) -> pa.Schema:
    first = (rows.rows.schema for item in slices for rows in islice(_keys(item, key, upto), 1))
    return pa.unify_schemas(list(first), promote_options="permissive")


def _rows(item: SliceFile, key: Sequence[str], schema: pa.Schema) -> Iterator[_Rows]:
    for batch, offsets, operations in rows_of(item, key, None, also=schema.names):
        yield _Rows(pa.Table.from_batches([fitted(batch, schema)]), offsets, takes_back(operations))


def _in_force(gathered: Sequence[_Rows], key: Sequence[str] | None, retracted: bool) -> _Rows:
    found = _Rows.joined(gathered)
    if len(found.back) > 1 and not (found.offsets[1:] > found.offsets[:-1]).all():
        # a checkpoint is in order of its key
        order = np.argsort(found.offsets, kind="stable")
        found = _Rows(found.rows.take(pa.array(order)), found.offsets[order], found.back[order])
    codes, count = codes_of(found.rows, found.rows.column_names if key is None else key)
    last = last_of(codes, count)
    kept = np.zeros(len(codes), dtype=bool)
    kept[last[last >= 0]] = True
    return found.only(kept if retracted else kept & ~found.back)


def codes_of(rows: pa.Table, key: Sequence[str]) -> tuple[Numbers, int]:
    """(a number for each row, equal where the key is; a number that is larger than all of these)."""
    codes, count = np.zeros(len(rows), dtype=np.int64), 1
    like = codes  # for each row one that is equal by some of the columns so far
    for name in key if len(rows) else ():
        numbers, many = _codes(pa.chunked_array([comparable(piece) for piece in rows.column(name).chunks]))
        # most columns tell no rows apart that others, such as a primary key, do not
        if (numbers == numbers[like]).all():
            continue
        if count * many >= 1 << 63:
            codes, count = _codes(pa.chunked_array([codes]))
            like = last_of(codes, count)[codes]
        codes, count = codes * many + numbers, count * many
        if count <= _SPREAD * len(codes) + 2:
            like = last_of(codes, count)[codes]
    return (codes, count) if count <= _SPREAD * len(codes) + 2 else _codes(pa.chunked_array([codes]))


def last_of(codes: Numbers, count: int, places: Numbers | None = None) -> Numbers:
    """The last row of each code, or the last one of these (ordered) places; -1 where there is none."""
    places = np.arange(len(codes)) if places is None else places
    last = np.full(count, -1, dtype=np.int64)
    last[codes[places]] = places  # of several with one code the last one stays
    return last


def _codes(column: pa.ChunkedArray) -> tuple[Numbers, int]:
    if t.is_integer(column.type) and (found := _as_they_are(column)) is not None:
        return found
    encoded = column.dictionary_encode(null_encoding="encode")
    numbers = np.concatenate([chunk.indices for chunk in encoded.chunks], dtype=np.int64)
    return numbers, len(encoded.chunk(0).dictionary)  # the chunks of one column have one dictionary


def _as_they_are(column: pa.ChunkedArray) -> tuple[Numbers, int] | None:
    """Whole numbers less the smallest of them, a null after all; None where they lie far apart."""
    found = pc.min_max(column)
    low, high = found["min"].as_py(), found["max"].as_py()
    if low is None or high - low > _SPREAD * len(column) or high + 1 >= 1 << 63:
        return None
    numbers = column.fill_null(high + 1 if column.null_count else high)
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
    hashes, *others = (np.concatenate(parts) for parts in zip(*found, strict=True))
    names, formats = "key,time,valid,offset,operation", "i8,i8,?,u8,u8"
    rows: Numbers = np.rec.fromarrays([numbered(hashes), *others], names=names, formats=formats)
    rows = rows[np.lexsort((rows["offset"], rows["key"]))]
    moved = (rows["operation"] == _FROM) & ~_ends(rows["key"])
    moved[:-1] &= (rows["operation"][1:] == _TO) & rows["valid"][1:] & (rows["time"][1:] > rows["time"][:-1])
    rows = rows[rows["valid"] & ~moved & (rows["time"] <= _number(time, scale))]
    rows = rows[np.lexsort((rows["offset"], rows["time"], rows["key"]))]
    rows = rows[(_ends(rows["key"]) | _ends(rows["time"])) & (rows["operation"] != _FROM)]
    return np.sort(rows["offset"][_ends(rows["key"]) & ~takes_back(rows["operation"])])


def _ends(column: Numbers) -> Numbers:
    """A mask of the last of equal values that come one after the other."""
    return np.append(column[1:] != column[:-1], np.ones(min(1, len(column)), dtype=bool))


def _entries(item: SliceFile, key: Sequence[str], scale: int) -> Iterator[tuple[Numbers, ...]]:
    name = item.vocabulary.event_time_column
    for batch, offsets, operations in rows_of(item, [*key, name], None):
        hashes = hash_rows(batch.select(list(key)), ())
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
    return max(-(2**63), min(2**63 - 1, time.epoch_ns // (_NANOS // scale)))


# Commits of what an engine or a changelog brought and check 10 of verification use this one rule; at most
# `_AT_ONCE` of each side is in memory (RFC-023). Source: specification "Retractions and Corrections".


def taken_back_in_vain(
    slices: Sequence[SliceFile], asked: Sequence[SliceFile], *, in_force: bool = True
) -> Numbers:
    """Offsets of the rows of `asked` that take back what is not in force, in order.

    `slices` are all of the dataset, oldest first, `asked` some of them. Without `in_force` the row that is
    taken back may have been taken back before.
    """
    last = max((item.interval.end for item in asked), default=0)
    walks = _walks([item for item in slices if item.interval.start <= last], asked)
    wrong = [offsets[walk.unmatched if in_force else walk.never_there] for offsets, walk in walks]
    found = np.unique(np.concatenate([np.zeros(0, np.uint64), *wrong]))
    within = np.zeros(len(found), dtype=bool)
    for item in asked:
        within |= (found >= item.interval.start) & (found <= item.interval.end)
    return found[within]


def _walks(
    slices: Sequence[SliceFile], asked: Sequence[SliceFile], upto: int | None = None
) -> Iterator[tuple[Numbers, Walk]]:
    """(offsets, their walk) of all rows that equal one that `asked` take back, of some of these at a time."""
    whole = list(islice(_together(_values(slices, upto)), 2)) if asked else []
    whole = whole if len(whole) < 2 else []
    for share in _shares() if asked else ():
        backs = (rows.only(rows.back) for rows in _values(asked, upto))
        wanted = whole[0] if whole else _newest(backs, retracted=True, share=share)
        if wanted is None:
            continue
        found = []
        for rows in whole or _together(share.only(rows) for rows in _values(slices, upto)):
            both = rows if whole else _Rows.joined([wanted, rows])
            codes, count = codes_of(both.rows, both.rows.column_names)
            kinds = last_of(codes, count, np.flatnonzero(wanted.back))[codes[len(codes) - len(rows.back) :]]
            like = kinds >= 0
            found.append((rows.offsets[like], rows.back[like], kinds[like]))
        offsets, back, kinds = (np.concatenate(parts) for parts in zip(*found, strict=True))
        yield offsets, Walk.of(offsets, back, kinds)


def _values(items: Sequence[SliceFile], upto: int | None, *, exact: bool = False) -> Iterator[_Rows]:
    for item in items:
        for batch, offsets, operations in rows_of(item, None, upto):
            names = [name for name in batch.schema.names if name not in item.vocabulary.columns[:3]]
            columns = [comparable(batch.column(name), exact=exact) for name in names]
            # columns of another type are others: what they have is equal to nothing but null
            typed = [f"{column.type} {name}" for name, column in zip(names, columns, strict=True)]
            if exact:
                columns, typed = [*columns, pa.array(operations)], [*typed, ""]
            yield _Rows(pa.table(columns, typed), offsets, takes_back(operations))


def _together(parts: Iterable[_Rows]) -> Iterator[_Rows]:
    gathered, size = list[_Rows](), 0
    for rows in parts:
        gathered.append(rows)
        size += rows.rows.nbytes
        if size > _AT_ONCE:
            yield _Rows.joined(gathered)
            gathered, size = [], 0
    if gathered:
        yield _Rows.joined(gathered)


def first_other_row(
    state: SliceFile, slices: Sequence[SliceFile], offsets: Numbers, upto: int
) -> tuple[int, int]:
    """(how many rows a state has, the place of the first of these `offsets` whose row is not as recorded).

    Operations and values are compared to the bit. At most `_AT_ONCE` of the state is in memory.
    """
    found, places = [np.zeros(0, np.uint64)], [len(offsets)]
    for rows in _together(_values([state], upto, exact=True)):
        found.append(rows.offsets)
        # rows of a state have no order of their own
        wanted, at, place = np.intersect1d(rows.offsets, offsets, return_indices=True)
        recorded = (part.only(np.isin(part.offsets, wanted)) for part in _values(slices, upto, exact=True))
        both = _Rows.joined([_Rows(rows.rows.take(pa.array(at)), wanted, rows.back[at]), *recorded])
        same = np.ones(len(wanted), dtype=bool)
        for column in both.rows.columns:
            same &= same_cells(column[: len(wanted)], column[len(wanted) :])
        places += place[~same][:1].tolist()
    actual = np.sort(np.concatenate(found))
    if len(actual) == len(offsets):
        places += np.flatnonzero(actual != offsets)[:1].tolist()
    return len(actual), min(places)
