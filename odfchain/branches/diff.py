"""Differences between two points of a dataset, row by row, read from the slices after their fork alone.

From state A to state B: a key that only one side touched since the fork is at the other as the fork had it,
and the side that touched it says itself what that was. Without a primary key a diff is the rows that each
side added. Source: RFC-036.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import pyarrow as pa

from odfchain.branches import intervals
from odfchain.branches.branches import BlockGraph
from odfchain.branches.row_diff import MergedTables, MergeInput, RowDiff, between, net_of_table
from odfchain.errors import SchemaError
from odfchain.odf.identity import Multihash
from odfchain.odf.row_hash import Numbers, same_cells
from odfchain.slices.ordering import order_of
from odfchain.slices.state import takes_back
from odfchain.text import one_line
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState

CHANGE, FROM, TO, COLUMNS = "change", "from", "to", "columns"
"""Columns of a table of changes after those of the key."""

Trust = Callable[[DatasetFiles, Multihash, Multihash], bool]
"""True if the blocks after one, up to another, were made or verified here."""


class Change(Enum):
    """Kind of change of a row between two states."""

    INSERTED = "inserted"
    CHANGED = "changed"
    REMOVED = "removed"


_INSERTED, _CHANGED, _REMOVED = (change.value for change in Change)


@dataclass(frozen=True, slots=True, eq=False)
class Diff:
    """The rows that differ between two points of a dataset."""

    a: Multihash
    b: Multihash
    fork: Multihash
    """The last block that the chains of both have in common."""
    key: tuple[str, ...]
    """The primary key; empty where the dataset has none."""
    changes: pa.Table
    """In order of key: the columns of the key, then `change`, `from` and `to` (structs of the other columns,
    null where there is no row), and `columns`: the names of those that changed."""
    base: int
    """The number of the block that the two are counted from: their fork, or A, where that is a merge base."""
    ahead: int
    """Blocks of B's chain that A (or the head, whose merge base A is) neither has nor has merged."""
    behind: int
    """Blocks of the other chain that B neither has nor has merged."""
    on_trust: bool = False
    """True if blocks of others say themselves what was before them: slices of that are not in this copy."""

    @property
    def counts(self) -> dict[Change, int]:
        """Rows by what happens to them; every kind is there."""
        found = self.changes.column(len(self.key)).value_counts().to_pylist()
        numbers = {item["values"]: int(item["counts"]) for item in found}
        return {change: numbers.get(change.value, 0) for change in Change}

    @property
    def changed_columns(self) -> dict[str, int]:
        """In how many rows each column changed, of those that did, in order of columns."""
        found = self.changes.column(len(self.key) + 3).combine_chunks().flatten().value_counts()
        numbers = {item["values"]: int(item["counts"]) for item in found.to_pylist()}
        return {name: numbers[name] for name in self.changes.schema.field(-2).type.names if name in numbers}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two points of a dataset, and in which columns and by which key they are compared."""

    sides: tuple[tuple[DatasetFiles, DatasetState], tuple[DatasetFiles, DatasetState]]
    key: tuple[str, ...]
    columns: intervals.MergedColumns

    @classmethod
    def of(cls, one: tuple[DatasetFiles, DatasetState], two: tuple[DatasetFiles, DatasetState]) -> Comparison:
        """From one state to another of the same dataset; `SchemaError` where they cannot be compared."""
        states = one[1], two[1]
        return cls((one, two), common_key(states), intervals.MergedColumns.of(*states))

    @property
    def schema(self) -> pa.Schema:
        """The columns of a table of changes; none where there are no data."""
        if self.columns.declared is None:
            return pa.schema([])
        nothing = [self.columns.rows.empty_table()] * 2
        return (changes_of(_between(nothing, self.key)) if self.key else _of_rows(nothing)).schema

    def changes(self, graph: BlockGraph, trusted: Trust) -> pa.Table:
        """The changes, computed in this process, as `Diff.changes`."""
        return self.diff(graph, trusted, intervals.IN_PROCESS).changes

    def diff(self, graph: BlockGraph, trusted: Trust, engine: intervals.Engine) -> Diff:
        """The difference of the two states."""
        # no slice at or before the fork is opened, unless a touched key has to be looked up there
        heads = [state.head for _, state in self.sides]
        fork = graph.fork(*heads)
        return self._diff(graph, [(fork, head) for head in heads], _between, trusted, engine, since=fork)

    def diff_since_base(self, graph: BlockGraph, trusted: Trust, engine: intervals.Engine) -> Diff:
        """Changes of the other point since its merge base with the first: those that a merge would bring."""
        head, end = (state.head for _, state in self.sides)
        asked = MergeInput.of(graph, head, end)
        # criss-cross merges have several bases: then the state that these merge into; without a key, the
        # newest
        base, way = asked.bases[-1], _between
        parts: Sequence[tuple[Multihash, Multihash]] = asked.intervals
        if asked.base.more and self._key:
            names = self.columns.names
            way = functools.partial(_since_base, asked=asked, event_time=names.event_time_column)
        else:
            fork = graph.fork(base, end)
            parts = [(fork, base), (fork, end)]
        return self._diff(graph, parts, way, trusted, engine, a=base, since=base)

    @property
    def _key(self) -> tuple[str, ...]:
        # before there is a schema there are no rows
        return self.key if self.columns.declared is not None else ()

    def _diff(
        self,
        graph: BlockGraph,
        parts: Sequence[tuple[Multihash, Multihash]],
        way: Callable[..., RowDiff],
        trusted: Trust,
        engine: intervals.Engine,
        *,
        since: Multihash,
        a: Multihash | None = None,
    ) -> Diff:
        one, other = (state.head for _, state in self.sides)
        sides = intervals_of(graph, parts, trusted)
        if self._key:
            work = functools.partial(_of_keys, key=self.key, way=way)
            with contextlib.ExitStack() as stack:
                staged = functools.partial(stack.enter_context, self.sides[0][0].staging())
                changes = intervals.compute(
                    sides, self.columns, self.key, work, engine=engine, private=staged
                ).rows()
        else:
            changes = _of_rows([intervals.read_rows(side, self.columns) for side in sides])
        return Diff(
            a or one, other, graph.fork(a or one, other), self._key, changes,
            base=graph.number(since),
            ahead=graph.number(other) - graph.number(graph.newest_reached(other, one)),
            behind=graph.number(one) - graph.number(graph.newest_reached(one, other)),
        )  # fmt: skip


def intervals_of(
    graph: BlockGraph, parts: Sequence[tuple[Multihash, Multihash]], trusted: Trust
) -> list[intervals.Interval]:
    """The intervals after some blocks, up to others."""
    files = [graph.files_of(upto) for _, upto in parts]
    return [
        intervals.Interval.of(each, after, upto, trusted=trusted(each, after, upto))
        for each, (after, upto) in zip(files, parts, strict=True)
    ]


def common_key(states: Sequence[DatasetState]) -> tuple[str, ...]:
    """The primary key that heads agree on, as the first of them has it; heads without data have none."""
    keys = [state.primary_key for state in states if state.last_offset is not None]
    keys = keys or [state.primary_key for state in states]
    if len({frozenset(key) for key in keys}) > 1:
        listed = " and ".join(one_line(", ".join(key)) or "none" for key in keys)
        raise SchemaError(
            f"the two sides have different primary keys: {listed}",
            hint="records are matched by primary key; give two points with the same one",
        )
    return keys[0]


def _between(tables: Sequence[pa.Table], key: tuple[str, ...]) -> RowDiff:
    # from the end of the first interval to the end of the second one
    return between(*(net_of_table(rows, key) for rows in tables))


def _since_base(
    tables: Sequence[pa.Table], key: tuple[str, ...], asked: MergeInput, event_time: str
) -> RowDiff:
    return MergedTables(tables, asked, key, event_time).changes_of_source()


def _of_keys(
    tables: Sequence[pa.Table], key: tuple[str, ...], way: Callable[..., RowDiff]
) -> intervals.KeyResult:
    return intervals.KeyResult(changes_of(way(tables, key=key)))


def changes_of(found: RowDiff) -> pa.Table:
    """Changed rows as a table for people, as `Diff.changes`."""
    return table_of_changes(found.only(order_of(found.rows_of_keys(), found.key)))


def table_of_changes(found: RowDiff) -> pa.Table:
    """As `changes_of`, in the given order."""
    key, keys = found.key, found.rows_of_keys()
    others = [name for name in found.schema.names if name not in key]
    both = found.had & found.has
    differs = np.zeros((len(found), len(others)), dtype=bool)
    for place, name in enumerate(others):
        differs[:, place] = both & ~same_cells(found.before.column(name), found.after.column(name))
    names = pa.array(others, pa.string()).take(pa.array(np.nonzero(differs)[1]))
    starts = np.concatenate([[0], np.cumsum(differs.sum(axis=1))]).astype(np.int32)
    changes = np.where(both, _CHANGED, np.where(found.has, _INSERTED, _REMOVED))
    return _table(
        keys,
        pa.array(changes, pa.string()),
        _structs(found.before.select(others), found.had),
        _structs(found.after.select(others), found.has),
        pa.ListArray.from_arrays(pa.array(starts), names),
    )


def _of_rows(sides: Sequence[pa.Table]) -> pa.Table:
    # without a key: the rows that A has and B lacks, then those of B, in their order
    rows = pa.concat_tables(sides)
    of_b = np.repeat([False, True], [side.num_rows for side in sides])
    # what one side took back the other one still has
    gained = of_b != takes_back(rows.column(1).to_numpy())
    return rows_changed(rows.select(range(2, rows.num_columns)), gained)


def rows_changed(data: pa.Table, gained: Numbers) -> pa.Table:
    """Rows without a key that are gained, or else lost, as `Diff.changes`."""
    return _table(
        data.select([]),
        pa.array(np.where(gained, _INSERTED, _REMOVED), pa.string()),
        _structs(data, ~gained),
        _structs(data, gained),
        pa.ListArray.from_arrays(np.zeros(len(gained) + 1, np.int32), pa.array([], pa.string())),
    )


def _table(keys: pa.Table, *columns: pa.Array) -> pa.Table:
    return pa.table([*keys.columns, *columns], [*keys.column_names, CHANGE, FROM, TO, COLUMNS])


def _structs(rows: pa.Table, there: Numbers) -> pa.Array:
    # one column, null where a row is absent
    kind = pa.struct(list(rows.schema))
    if not rows.num_columns:
        return pa.array([{} if present else None for present in there], kind)
    columns = [pa.concat_arrays(c.chunks) if c.num_chunks else pa.array([], c.type) for c in rows.columns]
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=pa.array(~there))
