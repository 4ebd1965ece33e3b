"""Merging two sides row by row and cell by cell: the one rule, pure, in Arrow.

    a cell (B base, O ours, T theirs):   O = T -> O;   B = O -> T;   B = T -> O;   else a conflict

- A row that one side left alone is the other side's. Rows that were deleted on both sides, or became equal,
  are no conflict. A deletion against an update is one, and so are two different inserts of one key.
- Event time is the time of an observation. Where both sides changed it differently it conflicts only if it is
  all that one of them changed; else ours stays where the rows are equal but for it, and the later one is
  taken where they are not. It never makes two inserts differ.
- A row whose base is not known (the bases themselves conflict there) conflicts unless both sides are equal.

Source: RFC-036.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from odfchain.branches.row_diff import RowDiff, aligned, check_same_base, either, same_cells, same_rows, take
from odfchain.odf.row_hash import Numbers


class ConflictKind(Enum):
    """Changes of a row by both sides: ours, then theirs."""

    INSERT_INSERT = "insert-insert"
    UPDATE_UPDATE = "update-update"
    UPDATE_DELETE = "update-delete"
    DELETE_UPDATE = "delete-update"


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """Rows of one side of a conflict, null where it has none."""

    rows: pa.Table
    there: Numbers

    def only(self, at: Numbers) -> Side:
        """The rows at these positions."""
        return Side(self.rows.take(pa.array(at)), self.there[at])


@dataclass(frozen=True, slots=True, eq=False)
class Conflicts:
    """The keys in conflict, in tables of one order."""

    key: tuple[str, ...]
    kinds: tuple[ConflictKind, ...]
    base: Side
    ours: Side
    theirs: Side
    merged: pa.Table
    """Where both sides have a row: what merges of it, and the conflicting cells as ours has them."""
    cells: Mapping[str, Numbers]
    """By column, whether it conflicts; none does where a side is absent: there the row is what conflicts."""
    keys: pa.Table
    """The key as columns that are equal where it is."""

    def __len__(self) -> int:
        return len(self.kinds)

    @property
    def count(self) -> int:
        """Conflicting cells; a row of which a side is absent counts as one."""
        return sum(int(mask.sum()) for mask in self.cells.values()) + sum(
            kind in (ConflictKind.UPDATE_DELETE, ConflictKind.DELETE_UPDATE) for kind in self.kinds
        )

    def rows_of_keys(self) -> pa.Table:
        """The columns of the key, with our values where we have a row."""
        return either(self.ours.there, self.ours.rows.select(self.key), self.theirs.rows.select(self.key))


@dataclass(frozen=True, slots=True, eq=False)
class ThreeWay:
    """Changes of our side by a merge, and the keys in conflict."""

    changes: RowDiff
    """From our rows to the merged ones."""
    conflicts: Conflicts


def merge_rows(
    ours: RowDiff,
    theirs: RowDiff,
    *,
    event_time: str,
    by_row: bool = False,
    baseless: Numbers | None = None,
) -> ThreeWay:
    """Merge what two sides did to one base; `baseless` marks the keys of `theirs` whose base is not known.

    With `by_row` two different rows of one key conflict, whatever cells they changed.
    """
    _, at_ours, at_theirs = aligned(ours, theirs)
    unknown = np.zeros(len(theirs), dtype=bool) if baseless is None else baseless
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
    conflicts = Conflicts(
        ours.key,
        kinds,
        Side(take(theirs.before, np.where(had, np.arange(len(had)), -1)), had).only(at),
        Side(ours.after, ours.has).only(at),
        Side(theirs.after, theirs.has).only(at),
        rows.take(pa.array(at)),
        {name: mask[at] for name, mask in cells.items()},
        ours.keys.take(pa.array(at)),
    )
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
    count = len(had)
    nothing = np.zeros(count, dtype=bool)
    rest = [name for name in columns if name != event_time]
    unequal = np.any([nothing, *(differs[name] for name in rest)], axis=0)
    if by_row:
        both_changed = [
            np.any([nothing, *(side[name] for name in columns)], axis=0) for side in (mine, other)
        ]
        whole = both_changed[0] & both_changed[1] & unequal
        torn = {name: np.where(whole, differs[name], torn[name] & unequal) for name in columns}
        # rows that both changed to the same are the same, whenever each side observed it
        alike = both_changed[0] & both_changed[1] & ~unequal
        taken = {name: taken[name] & ~(whole | alike) for name in columns}
    if event_time in torn:
        only_time = nothing.copy()
        for side in (mine, other):
            only_time |= had & ~np.any([nothing, *(side[name] for name in rest)], axis=0)
        settled = torn[event_time] & ~only_time
        torn[event_time] = torn[event_time] & only_time
        later = _later(ours.column(event_time), theirs.after.column(event_time))
        taken[event_time] = taken[event_time] | (settled & unequal & later)
    rows = ours
    for index, name in enumerate(rows.schema.names):
        if name in taken and taken[name].any():
            column = either(taken[name], theirs.after.select([name]), ours.select([name])).column(0)
            rows = rows.set_column(index, rows.schema.field(name), column)
    return rows, taken, torn


def _later(ours: pa.ChunkedArray, theirs: pa.ChunkedArray) -> Numbers:
    # a null is before every time
    found = pc.fill_null(pc.greater(theirs, ours), pc.and_(pc.is_null(ours), pc.is_valid(theirs)))
    later: Numbers = found.to_numpy()
    return later
