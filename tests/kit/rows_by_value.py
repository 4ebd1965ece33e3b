"""Oracle: rows compared by their cells, one value after the other."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import types as t

from odfchain.odf.enums import TAKES_BACK
from odfchain.slices.state import SliceFile, rows_of

Cells = frozenset[tuple[str, Any]]


def cells_of(batch: pa.RecordBatch, leave_out: Collection[str], *, exact: bool = False) -> list[Cells]:
    """What each row holds in all columns but those left out; what is null does not count."""
    columns = [
        [(name, canonical(value, exact, bits=True)) for value in column]
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
        if name not in leave_out
    ]
    return [frozenset(cell for cell in row if cell[1] is not None) for row in zip(*columns, strict=True)]


def canonical(value: pa.Scalar, exact: bool, *, bits: bool = False) -> Any:
    """A value that is equal to another one where the cells are; by its bits only outside of nested values."""
    if not value.is_valid:
        return None
    kind = value.type
    if t.is_dictionary(kind):
        return canonical(value.value, exact)
    if t.is_map(kind):
        return frozenset(tuple(canonical(each, exact) for each in entry.values()) for entry in value.values)
    if t.is_struct(kind):
        return tuple(canonical(each, exact) for each in value.values())
    if t.is_nested(kind):
        return tuple(canonical(each, exact) for each in value.values)
    if t.is_floating(kind):
        number = float(value.as_py())
        if number != number:  # noqa: PLR0124
            return struct.pack("<d", number) if exact and bits else "NaN"
        return repr(number) if exact else number + 0.0
    return value.value if t.is_temporal(kind) else value.as_py()


# --- the state without a key, row after row ------------------------------------------------------------------


def _rows(slices: Sequence[SliceFile], upto: int | None) -> Iterator[tuple[int, bool, Cells]]:
    for item in slices:
        for batch, offsets, operations in rows_of(item, None, upto):
            found = cells_of(batch, set(item.vocabulary.columns[:3]))
            for offset, operation, cells in zip(offsets, operations, found, strict=True):
                yield int(offset), int(operation) in TAKES_BACK, cells


def in_force(slices: Sequence[SliceFile], upto: int | None = None, *, net: bool = False) -> list[int]:
    """The offsets of the rows in force, without a key."""
    kept: dict[Cells, list[int]] = {}
    owed: dict[Cells, int] = {}
    for offset, back, cells in _rows(slices, upto):
        rows = kept.setdefault(cells, [])
        if not back:
            rows.append(offset)
        elif net:
            owed[cells] = owed.get(cells, 0) + 1
        elif rows:
            del rows[0]
    return sorted(offset for cells, rows in kept.items() for offset in rows[owed.get(cells, 0) :])


def taken_back_in_vain(
    slices: Sequence[SliceFile], asked: Sequence[SliceFile], *, in_force: bool
) -> list[int]:
    """Offsets of the rows of `asked` that take back what is not in force, or was never there."""
    there: dict[Cells, int] = {}
    wrong = []
    for offset, back, cells in _rows(slices, None):
        count = there.get(cells, 0)
        if not back:
            there[cells] = count + 1
        elif not count:
            wrong.append(offset)
        elif in_force:
            there[cells] = count - 1
    return [o for o in wrong if any(i.interval.start <= o <= i.interval.end for i in asked)]


def first_other_row(state: SliceFile, slices: Sequence[SliceFile], offsets: Collection[int]) -> int:
    """The place of the first of these offsets whose row a state lacks, or has otherwise."""

    def rows(items: Sequence[SliceFile]) -> Iterator[tuple[int, int, Cells]]:
        for item in items:
            for batch, numbers, operations in rows_of(item, None, None):
                found = cells_of(batch, set(item.vocabulary.columns[:3]), exact=True)
                for offset, operation, cells in zip(numbers, operations, found, strict=True):
                    yield int(offset), int(operation), cells

    actual = sorted(rows([state]), key=lambda row: row[0])
    wanted = [row for row in rows(slices) if row[0] in offsets]
    differ = (place for place, (one, other) in enumerate(zip(actual, wanted, strict=True)) if one != other)
    return next(differ, len(wanted))
