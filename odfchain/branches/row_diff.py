"""Differences between states of a dataset with a primary key, row by row, and merging them; pure, in Arrow.

An ODF changelog carries its own base: the first row of a key after a block says what the key was there (`+A`:
absent; `-C`, `-R`: the old values), and the last one what it is now. So the rows that come after a fork are
all that has to be read. Source: RFC-036; specification "Projection".
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from odfchain.errors import ChainError
from odfchain.odf.arrow_schema import nullable
from odfchain.odf.enums import APPEND, CORRECT_FROM, CORRECT_TO, RETRACT, OperationType
from odfchain.odf.events import DatasetVocabulary
from odfchain.odf.identity import Multihash
from odfchain.odf.row_hash import Numbers, comparable, same_cells
from odfchain.slices.ordering import order_of
from odfchain.slices.reader import PER_SECOND
from odfchain.slices.state import codes_of, last_of, takes_back
from odfchain.text import one_line

if TYPE_CHECKING:
    from odfchain.branches.branches import BlockGraph

# Cells as canonical JSON texts, exact in both directions: equal values have equal texts.
# Decimals, times, dates, bytes (hex) and integers beyond 2**53 are strings; so are `"NaN"`, `"Infinity"`,
# `"-Infinity"`; maps are sorted lists of entries. Numbers as spreadsheets write them are accepted if equal by
# the column's type (`1416.0` for an integer); `1,416` is refused, because it may be two numbers.

_SAFE = 2**53 - 1
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?", re.ASCII)
_ZONE = re.compile(r"(Z|[+-]\d\d:?\d\d)$")
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_ZEROS = re.compile(r"\.(\d*?)0+(?=Z|$)", re.ASCII)
_CLOCK = re.compile(r"(\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?", re.ASCII)
_NO_NUMBERS = {name: float(name) for name in ("nan", "infinity", "inf", "-infinity", "-inf")}


def json_text(tree: Any) -> str:
    """The one text of a tree of JSON."""
    return json.dumps(tree, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def tree_of(value: pa.Scalar) -> Any:
    """A cell as JSON has it."""
    kind = value.type
    if not value.is_valid:
        return None
    if t.is_integer(kind):
        number = value.as_py()
        return number if abs(number) <= _SAFE else str(number)
    if t.is_floating(kind):
        return _tree_of_float(value)
    if t.is_decimal(kind):
        return format(value.as_py(), "f")
    if t.is_struct(kind):
        return {name: tree_of(value[name]) for name in kind.names}
    if t.is_map(kind):
        entries = ({"key": tree_of(e["key"]), "value": tree_of(e["value"])} for e in value.values)
        return sorted(entries, key=json_text)
    if t.is_nested(kind):
        return [tree_of(item) for item in value.values]
    if t.is_timestamp(kind) or t.is_time(kind):
        return _time_text(value)
    if t.is_date(kind):
        return value.cast(pa.string()).as_py()
    if t.is_duration(kind):
        return value.value
    found = value.as_py()
    return found.hex() if isinstance(found, bytes) else found


def _time_text(value: pa.Scalar) -> str:
    zoned = t.is_timestamp(value.type) and value.type.tz
    utc = value.cast(pa.timestamp(value.type.unit, "UTC")) if zoned else value
    text = utc.cast(pa.string()).as_py().replace(" ", "T")
    return _ZEROS.sub(lambda found: f".{found[1]}" if found[1] else "", text)


def _tree_of_float(value: pa.Scalar) -> Any:
    # the shortest digits that mean this number in its own width
    number = float(str(value.type.to_pandas_dtype()(value.as_py())))
    if math.isfinite(number):
        return int(number) if number.is_integer() and abs(number) <= _SAFE else number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def array_of(trees: list[Any], kind: pa.DataType) -> pa.Array:
    """Cells of a column from what JSON, or a person, wrote for each.

    Raises:
        ValueError: one is not exactly a value of this type.
    """
    found = [_exact(tree, kind) for tree in trees]
    try:
        return pa.array(found, kind)
    except (pa.ArrowException, OverflowError, TypeError, UnicodeError):
        raise _wrong(trees[0] if len(trees) == 1 else trees, kind) from None


def _exact(tree: Any, kind: pa.DataType) -> Any:
    # values that Arrow takes for this type without changing them
    if tree is None:
        return None
    if t.is_struct(kind) and isinstance(tree, dict) and tree.keys() == set(kind.names):
        return {each.name: _exact(tree[each.name], each.type) for each in kind}
    if t.is_map(kind) and isinstance(tree, list):
        entries = [e for e in tree if isinstance(e, dict) and e.keys() == {"key", "value"}]
        if len(entries) == len(tree):
            return [(_exact(e["key"], kind.key_type), _exact(e["value"], kind.item_type)) for e in entries]
    elif t.is_nested(kind) and not t.is_struct(kind) and isinstance(tree, list):
        return [_exact(item, kind.value_type) for item in tree]
    if isinstance(tree, dict | list) or t.is_nested(kind):
        raise _wrong(tree, kind)
    if t.is_boolean(kind):
        text = str(tree).casefold()
        if text not in ("true", "false"):
            raise _wrong(tree, kind)
        return text == "true"
    if t.is_string(kind) or t.is_large_string(kind):
        return tree if isinstance(tree, str) else json_text(tree)
    if isinstance(tree, bool):
        raise _wrong(tree, kind)
    try:
        is_number = any(test(kind) for test in (t.is_integer, t.is_floating, t.is_decimal, t.is_duration))
        return (_exact_number if is_number else _exact_text)(str(tree), kind)
    except (ValueError, ArithmeticError, pa.ArrowException):
        raise _wrong(tree, kind) from None


def _exact_number(text: str, kind: pa.DataType) -> Any:
    if t.is_floating(kind) and text.strip().casefold() in _NO_NUMBERS:
        return _NO_NUMBERS[text.strip().casefold()]
    if not _NUMBER.fullmatch(text.strip()):
        raise ValueError(text)
    number = Decimal(text.strip())
    if t.is_floating(kind):
        found = np.float16(text) if t.is_float16(kind) else float(number)
        if not math.isfinite(found):
            raise InvalidOperation(text)
        return found
    if t.is_decimal(kind):
        return number
    if number.adjusted() > 40 or number != number.to_integral_value():
        raise InvalidOperation(text)
    return int(number)


def _exact_text(text: str, kind: pa.DataType) -> Any:
    if t.is_timestamp(kind):
        text = text.strip().replace(" ", "T", 1)
        text = f"{text}T00:00:00" if _DAY.fullmatch(text) else text
        zoned = f"{text}Z" if kind.tz and not _ZONE.search(text) else text
        return pa.scalar(zoned).cast(pa.timestamp(kind.unit, "UTC" if kind.tz else None)).value
    if t.is_time(kind) and (clock := _CLOCK.fullmatch(text.strip())):
        hour, minute, second = (int(part or 0) for part in clock.groups()[:3])
        part, rest = divmod(int((clock[4] or "").ljust(9, "0")) * PER_SECOND[kind.unit], 10**9)
        if not rest and hour < 24 and minute < 60 and second < 60:
            return (hour * 3600 + minute * 60 + second) * PER_SECOND[kind.unit] + part
    elif t.is_date(kind):
        return pa.scalar(text.strip()).cast(pa.date32()).as_py()
    elif t.is_binary(kind) or t.is_large_binary(kind) or t.is_fixed_size_binary(kind):
        return bytes.fromhex(text)
    raise ValueError(text)


def _wrong(tree: Any, kind: pa.DataType) -> ValueError:
    return ValueError(f"{tree if isinstance(tree, str) else json_text(tree)} is not a value of type {kind}")


_ADDED, _CORRECTED = OperationType.APPEND.code, OperationType.CORRECT_TO.code
_SHOWN = 60
"""Of a value in a message [characters]."""


@dataclass(frozen=True, slots=True, eq=False)
class RowDiff:
    """The keys whose rows differ between two states, each once: the row before and the row after.

    All tables and masks are of one length and order. The columns are those of the data: no offset, operation
    or system time; all are null where there is no row.
    """

    key: tuple[str, ...]
    before: pa.Table
    had: Numbers
    """True where there was a row before."""
    after: pa.Table
    has: Numbers
    """True where there is a row after."""
    keys: pa.Table
    """The key as columns that are equal where it is."""

    def __len__(self) -> int:
        return len(self.had)

    @property
    def schema(self) -> pa.Schema:
        """The data columns."""
        return self.after.schema

    def rows_of_keys(self) -> pa.Table:
        """The columns of the key, with their values."""
        return either(self.has, self.after.select(self.key), self.before.select(self.key))

    def only(self, chosen: Numbers) -> RowDiff:
        """The keys that a mask or positions choose."""
        at = np.flatnonzero(chosen) if chosen.dtype == bool else chosen
        before, after, keys = (each.take(pa.array(at)) for each in (self.before, self.after, self.keys))
        return RowDiff(self.key, before, self.had[at], after, self.has[at], keys)

    def reversed(self) -> RowDiff:
        """The way back."""
        return RowDiff(self.key, self.after, self.has, self.before, self.had, self.keys)

    def unmoved(self) -> RowDiff:
        """The rows before, as they are."""
        return RowDiff(self.key, self.before, self.had, self.before, self.had, self.keys)

    def is_in(self, other: RowDiff) -> Numbers:
        """A mask of the keys that another one has, too."""
        _, at, at_other = aligned(self, other)
        found = np.zeros(len(self), dtype=bool)
        found[at[(at >= 0) & (at_other >= 0)]] = True
        return found

    def without(self, other: RowDiff) -> RowDiff:
        """Those of other keys than another one has."""
        return self.only(~self.is_in(other)) if len(other) and len(self) else self

    @classmethod
    def joined(cls, diffs: Sequence[RowDiff]) -> RowDiff:
        """Diffs of different keys as one."""
        return cls(
            diffs[0].key,
            pa.concat_tables(d.before for d in diffs),
            np.concatenate([d.had for d in diffs]),
            pa.concat_tables(d.after for d in diffs),
            np.concatenate([d.has for d in diffs]),
            pa.concat_tables(d.keys for d in diffs),
        )


def net_of(operations: Numbers, rows: pa.Table, key: Sequence[str]) -> RowDiff:
    """The net change of each key by the rows of an interval (in order of offset, data columns).

    Raises:
        ChainError: a key begins with a `+C` that nothing goes before.
    """
    keys = key_columns(rows, key)
    first, last = ends_of(keys)
    begins = operations[first]
    if (torn := begins == _CORRECTED).any():
        row = rows.slice(int(first[np.flatnonzero(torn)[0]]), 1).select(list(key))
        raise ChainError(f"{key_text(row)}: a +C (corrected to) without the -C that it follows")
    had, has = begins != _ADDED, ~takes_back(operations[last])
    before, after = take(rows, np.where(had, first, -1)), take(rows, np.where(has, last, -1))
    found = RowDiff(tuple(key), before, had, after, has, keys.take(pa.array(first)))
    return found.only(changed(found))


def between(one: RowDiff, other: RowDiff) -> RowDiff:
    """From the state that `one` leads to, to the one that `other` leads to; both begin at the same state."""
    keys, at_one, at_other = aligned(one, other)
    check_same_base(one, other, at_one, at_other)
    by_other = at_other >= 0
    # a key that only one of them has is at the other as it was at the beginning
    before = either(at_one >= 0, take(one.after, at_one), take(other.before, at_other))
    had = np.where(at_one >= 0, _mask(one.has, at_one), _mask(other.had, at_other))
    after = either(by_other, take(other.after, at_other), take(one.before, at_one))
    has = np.where(by_other, _mask(other.has, at_other), _mask(one.had, at_one))
    found = RowDiff(one.key, before, had, after, has, keys)
    return found.only(changed(found))


def changed(diff: RowDiff) -> Numbers:
    """A mask of the keys whose rows differ."""
    found: Numbers = diff.had != diff.has
    return found | (diff.had & ~same_rows(diff.before, diff.after, diff.schema.names))


def same_rows(one: pa.Table, other: pa.Table, columns: Sequence[str]) -> Numbers:
    """A mask of the rows of two tables that are equal in these columns."""
    found = np.ones(one.num_rows, dtype=bool)
    for name in columns:
        found &= same_cells(one.column(name), other.column(name))
    return found


def aligned(one: RowDiff, other: RowDiff) -> tuple[pa.Table, Numbers, Numbers]:
    """All keys of two diffs, and the place of each in them; -1 is nowhere."""
    keys, count = pa.concat_tables([one.keys, other.keys]), len(one)
    first, last = ends_of(keys)
    at_one, at_other = np.where(first < count, first, -1), np.where(last < count, -1, last - count)
    return keys.take(pa.array(first)), at_one, at_other


def check_same_base(one: RowDiff, other: RowDiff, at_one: Numbers, at_other: Numbers) -> None:
    """Check that both sides began at the same state."""
    both = (at_one >= 0) & (at_other >= 0)
    if not both.any():
        return
    mine, theirs = at_one[both], at_other[both]
    left, right = take(one.before, mine), take(other.before, theirs)
    wrong = one.had[mine] != other.had[theirs]
    wrong |= one.had[mine] & ~same_rows(left, right, one.schema.names)
    if wrong.any():
        row = one.only(mine[wrong][:1]).rows_of_keys()
        raise ChainError(
            f"{key_text(row)}: the two branches say different things of what it was where they part",
            hint="`odfchain verify` both of them: one takes back a row that was not there",
        )


def key_columns(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """The key as columns that are equal where it is, of any type."""
    columns = [comparable(rows.column(name).combine_chunks()) for name in key]
    return pa.table(columns, [str(number) for number in range(len(columns))])


def ends_of(keys: pa.Table) -> tuple[Numbers, Numbers]:
    """(the place of the first row of each key, that of its last one), in order of the first rows."""
    codes, count = codes_of(keys, keys.column_names)
    first = len(codes) - 1 - last_of(codes[::-1], count)
    first = np.sort(first[first < len(codes)])
    return first, last_of(codes, count)[codes[first]]


def key_text(rows: pa.Table, index: int = 0) -> str:
    """One row of the columns of a key, for messages, as `history` takes it: `iata=ZRH`."""
    trees = {name: tree_of(rows.column(name)[index]) for name in rows.column_names}
    texts = {name: tree if isinstance(tree, str) else json_text(tree) for name, tree in trees.items()}
    return ", ".join(f"{one_line(name)}={one_line(text, _SHOWN)}" for name, text in texts.items())


def take(rows: pa.Table, at: Numbers) -> pa.Table:
    """Rows by position; nulls where that is -1."""
    return rows.take(pa.array(at, pa.int64(), mask=at < 0)).cast(nullable(rows.schema))


def either(mask: Numbers, one: pa.Table, other: pa.Table) -> pa.Table:
    """The rows of one table where a mask says so, else those of the other."""
    count = one.num_rows
    rows = pa.concat_tables([one, other])
    return rows.take(pa.array(np.where(mask, np.arange(count), np.arange(count) + count), pa.int64()))


def _mask(values: Numbers, at: Numbers) -> Numbers:
    return values[at] if len(values) else np.zeros(len(at), dtype=bool)


# Changes as rows: `-R`, `-C` and `+C`, `+A`, ordered by key and operation, so that `-C` comes right before
# its `+C`. Keys are ordered as Spark orders them (`odfchain.slices.ordering.order_of`).


def rows_of_changes(diff: RowDiff, names: DatasetVocabulary) -> pa.Table:
    """The rows that bring these changes about: operation and data columns, in the order they are written."""
    keys = diff.rows_of_keys()
    diff = diff.only(order_of(keys, keys.column_names))
    had, has = diff.had, diff.has
    old = np.stack([had, np.where(has, CORRECT_FROM, RETRACT)], axis=1)
    new = np.stack([has, np.where(had, CORRECT_TO, APPEND)], axis=1)
    # two places for each key: what was there before, then what is there after
    there, operations = np.stack([old, new], axis=1).reshape(-1, 2).T
    positions = np.arange(2 * len(diff)).reshape(2, -1).T.reshape(-1)
    written = there.astype(bool)
    rows = pa.concat_tables([diff.before, diff.after]).take(pa.array(positions[written]))
    codes = pa.array(operations[written].astype(np.int32))
    return rows.add_column(0, names.operation_type_column, codes)


# Merging two sides row by row and cell by cell: the one rule (RFC-036).
#
#     a cell (B base, O ours, T theirs):   O = T -> O;   B = O -> T;   B = T -> O;   else a conflict
#
# - A row that one side left alone is the other side's. Rows that were deleted on both sides, or became equal,
#   are no conflict. A deletion against an update is one, and so are two different inserts of one key.
# - Event time is the time of an observation. Where both sides changed it differently it conflicts only if it
#   is all that one of them changed; else ours stays where the rows are equal but for it, and the later one is
#   taken where they are not. It never makes two inserts differ.
# - A row whose base is not known (the bases themselves conflict there) conflicts unless both sides are equal.


class ConflictKind(Enum):
    """Changes of a row by both sides: ours, then theirs."""

    INSERT_INSERT = "insert-insert"
    UPDATE_UPDATE = "update-update"
    UPDATE_DELETE = "update-delete"
    DELETE_UPDATE = "delete-update"


@dataclass(frozen=True, slots=True, eq=False)
class Conflicts:
    """The keys in conflict, in tables of one order."""

    kinds: tuple[ConflictKind, ...]
    base: RowDiff
    """The rows of the base, as they are (`RowDiff.unmoved`); likewise those of both sides."""
    ours: RowDiff
    theirs: RowDiff
    merged: pa.Table
    """Where both sides have a row: what merges of it, and the conflicting cells as ours has them."""
    cells: Mapping[str, Numbers]
    """By column, whether it conflicts; none does where a side is absent: there the row is what conflicts."""

    def __len__(self) -> int:
        return len(self.kinds)

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of the key."""
        return self.ours.key

    @property
    def count(self) -> int:
        """Conflicting cells; a row of which a side is absent counts as one."""
        return sum(int(mask.sum()) for mask in self.cells.values()) + sum(
            kind in (ConflictKind.UPDATE_DELETE, ConflictKind.DELETE_UPDATE) for kind in self.kinds
        )

    def rows_of_keys(self) -> pa.Table:
        """The columns of the key, with our values where we have a row."""
        return either(self.ours.has, self.ours.after.select(self.key), self.theirs.after.select(self.key))


@dataclass(frozen=True, slots=True, eq=False)
class ThreeWay:
    """Changes of our side by a merge, and the keys in conflict."""

    changes: RowDiff
    """From our rows to the merged ones."""
    conflicts: Conflicts


def merge_rows(
    ours: RowDiff, theirs: RowDiff, *, event_time: str, by_row: bool = False, baseless: Numbers | None = None
) -> ThreeWay:
    """Merge what two sides did to one base; `baseless` marks the keys of `theirs` whose base is not known.

    With `by_row` two different rows of one key conflict, even where they changed different cells.
    """
    _, at_ours, at_theirs = aligned(ours, theirs)
    unknown = np.zeros(len(theirs), dtype=bool) if baseless is None else baseless
    # -1 is absent: as an index it gives the last row, and in an empty array an error
    known = (at_theirs < 0) | ~unknown[at_theirs] if len(theirs) else at_theirs < 0
    check_same_base(ours, theirs, np.where(known, at_ours, -1), at_theirs)
    alone = theirs.only(at_theirs[(at_ours < 0) & (at_theirs >= 0)])
    both = (at_ours >= 0) & (at_theirs >= 0)
    mine, other = ours.only(at_ours[both]), theirs.only(at_theirs[both])
    merged, conflicts = _both(mine, other, unknown[at_theirs[both]], event_time, by_row=by_row)
    return ThreeWay(RowDiff.joined([alone, merged]), conflicts)


def _both(
    ours: RowDiff, theirs: RowDiff, baseless: Numbers, event_time: str, *, by_row: bool
) -> tuple[RowDiff, Conflicts]:
    had = theirs.had & ~baseless
    present = ours.has & theirs.has
    columns = [name for name in ours.schema.names if name not in ours.key]
    rows, taken, cells = _cells(ours.after, theirs, columns, had, event_time, by_row=by_row)
    counted = present
    if not by_row:
        others = [name for name in columns if name != event_time]
        # two inserts differ by something else than the time of their observation
        counted = present & (had | ~same_rows(ours.after, theirs.after, others))
    taken = {name: mask & counted for name, mask in taken.items()}
    cells = {name: mask & counted for name, mask in cells.items()}
    torn = np.any([np.zeros(len(ours), dtype=bool), *cells.values()], axis=0)
    torn |= ours.has != theirs.has
    changes = np.any([np.zeros(len(ours), dtype=bool), *taken.values()], axis=0) & ~torn
    # a row with a conflict is not changed at all, also where other cells of it merge
    result = RowDiff(ours.key, ours.after, ours.has, rows, ours.has, ours.keys).only(changes)
    at = np.flatnonzero(torn)
    kinds = tuple(
        ConflictKind.DELETE_UPDATE
        if not ours.has[i]
        else ConflictKind.UPDATE_DELETE
        if not theirs.has[i]
        else ConflictKind.UPDATE_UPDATE
        if had[i]
        else ConflictKind.INSERT_INSERT
        for i in at
    )
    base = take(theirs.before, np.where(had, np.arange(len(had)), -1))
    sides = ((base, had), (ours.after, ours.has), (theirs.after, theirs.has))
    earlier, one, other = (
        RowDiff(ours.key, of_side, there, of_side, there, ours.keys).only(at) for of_side, there in sides
    )
    conflicting = {name: mask[at] for name, mask in cells.items()}
    conflicts = Conflicts(kinds, earlier, one, other, rows.take(pa.array(at)), conflicting)
    return result, conflicts


def _cells(
    ours: pa.Table, theirs: RowDiff, columns: list[str], had: Numbers, event_time: str, *, by_row: bool
) -> tuple[pa.Table, dict[str, Numbers], dict[str, Numbers]]:
    """(merged rows, by column where theirs was taken, by column where it conflicts)."""
    mine: dict[str, Numbers] = {}
    other: dict[str, Numbers] = {}
    differs: dict[str, Numbers] = {}
    for name in columns:
        base, our, their = theirs.before.column(name), ours.column(name), theirs.after.column(name)
        # without a base each side has changed every cell
        mine[name], other[name] = (~had | ~same_cells(base, side) for side in (our, their))
        differs[name] = ~same_cells(our, their)
    taken = {name: other[name] & ~mine[name] & differs[name] for name in columns}
    torn = {name: other[name] & mine[name] & differs[name] for name in columns}
    nothing = np.zeros(len(had), dtype=bool)
    rest = [name for name in columns if name != event_time]
    unequal = np.any([nothing, *(differs[name] for name in rest)], axis=0)
    if by_row:
        by_both = [np.any([nothing, *(side[name] for name in columns)], axis=0) for side in (mine, other)]
        whole = by_both[0] & by_both[1] & unequal
        torn = {name: np.where(whole, differs[name], torn[name] & unequal) for name in columns}
        # rows that both changed to the same are the same, whenever each side observed it
        alike = by_both[0] & by_both[1] & ~unequal
        taken = {name: taken[name] & ~(whole | alike) for name in columns}
    if event_time in torn:
        only_time = nothing.copy()
        for side in (mine, other):
            only_time |= had & ~np.any([nothing, *(side[name] for name in rest)], axis=0)
        settled = torn[event_time] & ~only_time
        torn[event_time] = torn[event_time] & only_time
        our, their = ours.column(event_time), theirs.after.column(event_time)
        # a null is before every time
        later = pc.fill_null(pc.greater(their, our), pc.and_(pc.is_null(our), pc.is_valid(their)))
        taken[event_time] = taken[event_time] | (settled & unequal & later.to_numpy())
    rows = ours
    for index, name in enumerate(rows.schema.names):
        if name in taken and taken[name].any():
            column = either(taken[name], theirs.after.select([name]), ours.select([name])).column(0)
            rows = rows.set_column(index, rows.schema.field(name), column)
    return rows, taken, torn


_DEEPEST = 8


@dataclass(frozen=True, slots=True)
class MergedState:
    """The state that further blocks are merged into, one after the other, each with a base of its own."""

    block: Multihash
    more: tuple[tuple[Multihash, MergedState], ...] = ()
    """(block, base) of what is merged into it."""

    @property
    def blocks(self) -> list[Multihash]:
        """All blocks that it is made of; those of bases are not among them."""
        return [self.block, *(block for block, _ in self.more)]


@dataclass(frozen=True, slots=True)
class MergeInput:
    """The intervals [after, upto] that a merge is computed from, and how."""

    base: MergedState
    target: Multihash
    source: Multihash
    intervals: tuple[tuple[Multihash, Multihash], ...]
    ways: dict[tuple[Multihash, Multihash], tuple[int | None, int | None]]
    """From one block to another: the intervals from their fork to each; None is an empty one."""

    @classmethod
    def of(cls, graph: BlockGraph, target: Multihash, source: Multihash) -> MergeInput:
        """The input of a merge of two blocks."""
        return cls.between(graph, graph.best_common([target], [source]), target, source)

    @classmethod
    def between(
        cls, graph: BlockGraph, bases: Sequence[Multihash], target: Multihash, source: Multihash
    ) -> MergeInput:
        """The input of a merge of two blocks with these bases (in order)."""
        base = _merged(graph, bases, 1)
        places: dict[tuple[Multihash, Multihash], int] = {}

        def place(fork: Multihash, end: Multihash) -> int | None:
            return None if end == fork else places.setdefault((fork, end), len(places))

        ways = {}
        for one, other in _asked(base, target, source):
            fork = graph.fork(one, other)
            ways[one, other] = place(fork, one), place(fork, other)
        return cls(base, target, source, tuple(places), ways)

    @property
    def bases(self) -> tuple[Multihash, ...]:
        """The best common ancestors, in order of sequence number and hash."""
        return tuple(self.base.blocks)


def _merged(graph: BlockGraph, blocks: Sequence[Multihash], depth: int) -> MergedState:
    first, *others = blocks
    if others and depth > _DEEPEST:
        raise ChainError(
            f"the two sides have merged each other crosswise more than {_DEEPEST} times in a row",
            hint="go on from one of them, and record there what the other one has (`odfchain diff` lists it)",
        )
    more: list[tuple[Multihash, MergedState]] = []
    for block in others:
        before = [first, *(earlier for earlier, _ in more)]
        more.append((block, _merged(graph, graph.best_common(before, [block]), depth + 1)))
    return MergedState(first, tuple(more))


def _asked(base: MergedState, *blocks: Multihash) -> list[tuple[Multihash, Multihash]]:
    # pairs of blocks between which the way is needed when these are compared to a base
    found = [(base.block, block) for block in blocks]
    for block, inner in base.more:
        found += _asked(inner, base.block, block)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    """A state: how it is reached from a block, and the rows of it for keys whose true row is not known."""

    block: Multihash
    way: RowDiff
    unknown: RowDiff
    """Before and after are the same: what `way` leads to."""


class MergedTables:
    """What two sides did, by the rows (`read_rows`) of the intervals that were asked for."""

    def __init__(
        self, tables: Sequence[pa.Table], asked: MergeInput, key: tuple[str, ...], event_time: str
    ) -> None:
        self._asked, self._event_time = asked, event_time
        # one interval may be part of several ways
        self._net = functools.cache(lambda place: net_of_table(tables[place], key))
        self._none = net_of_table(tables[0].slice(0, 0), key)

    def merged(self, *, by_row: bool = False) -> ThreeWay:
        """Both sides merged."""
        base = self._state(self._asked.base)
        ours, theirs = (self._state(MergedState(block)) for block in (self._asked.target, self._asked.source))
        return self._three_way(base, ours, theirs, by_row=by_row)

    def changes_of_source(self) -> RowDiff:
        """The changes of the source since the base, by the same rules."""
        base = self._state(self._asked.base)
        return _then(base.way.reversed(), self._way(base.block, self._asked.source))

    def _way(self, one: Multihash, other: Multihash) -> RowDiff:
        back, on = (self._none if p is None else self._net(p) for p in self._asked.ways[one, other])
        return _then(back.reversed(), on)

    def _state(self, asked: MergedState) -> _State:
        found = _State(asked.block, self._none, self._none)
        for block, base in asked.more:
            found = self._merge_into(found, self._state(base), _State(block, self._none, self._none))
        return found

    def _merge_into(self, ours: _State, base: _State, theirs: _State) -> _State:
        found = self._three_way(base, ours, theirs, by_row=False)
        unknown = RowDiff.joined([ours.unknown, found.conflicts.ours])
        return _State(ours.block, _then(ours.way, found.changes), unknown)

    def _three_way(self, base: _State, ours: _State, theirs: _State, *, by_row: bool) -> ThreeWay:
        sides = []
        for side in (ours, theirs):
            way = _then(base.way.reversed(), _then(self._way(base.block, side.block), side.way))
            # a key without a base has to be looked at even where a side is as the base would have been
            sides.append(RowDiff.joined([way, base.unknown.without(way)]).without(ours.unknown))
        baseless = sides[1].is_in(base.unknown)
        return merge_rows(*sides, event_time=self._event_time, by_row=by_row, baseless=baseless)


def net_of_table(rows: pa.Table, key: tuple[str, ...]) -> RowDiff:
    """The net change of each key by the rows of an interval (`read_rows`)."""
    return net_of(rows.column(1).to_numpy(), rows.select(range(2, rows.num_columns)), key)


def _then(one: RowDiff, other: RowDiff) -> RowDiff:
    if not len(one) or not len(other):
        return one if len(one) else other
    # reversed, the first begins where the second does
    return between(one.reversed(), other)
