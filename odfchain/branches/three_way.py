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

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from odfchain.branches.row_diff import (
    RowDiff,
    aligned,
    between,
    check_same_base,
    either,
    net_of,
    same_cells,
    same_rows,
    take,
)
from odfchain.errors import ChainError
from odfchain.odf.identity import Multihash
from odfchain.odf.row_hash import Numbers

if TYPE_CHECKING:
    from odfchain.branches.branches import BlockGraph


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
        torn = found.conflicts
        here = RowDiff(torn.key, torn.ours.rows, torn.ours.there, torn.ours.rows, torn.ours.there, torn.keys)
        return _State(ours.block, _then(ours.way, found.changes), RowDiff.joined([ours.unknown, here]))

    def _three_way(self, base: _State, ours: _State, theirs: _State, *, by_row: bool) -> ThreeWay:
        sides = []
        for side in (ours, theirs):
            way = _then(base.way.reversed(), _then(self._way(base.block, side.block), side.way))
            # a key without a base has to be looked at even where a side is as the base would have been
            sides.append(RowDiff.joined([way, base.unknown.without(way)]).without(ours.unknown))
        return merge_rows(
            *sides,
            event_time=self._event_time,
            by_row=by_row,
            baseless=sides[1].is_in(base.unknown),
        )


def net_of_table(rows: pa.Table, key: tuple[str, ...]) -> RowDiff:
    """The net change of each key by the rows of an interval (`read_rows`)."""
    return net_of(rows.column(1).to_numpy(), rows.select(range(2, rows.num_columns)), key)


def _then(one: RowDiff, other: RowDiff) -> RowDiff:
    if not len(one) or not len(other):
        return one if len(one) else other
    # reversed, the first begins where the second does
    return between(one.reversed(), other)
