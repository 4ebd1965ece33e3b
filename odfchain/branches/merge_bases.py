"""Base of a merge: the state of one block, or of several blocks merged by the same rules.

Two branches that were merged into each other have several best common ancestors. Their base is then the merge
of these, in order of sequence number and hash, each time with a base of its own. A key in conflict there has
no base, and conflicts unless both sides are equal. Source: RFC-036.

Nothing here reads: `MergeInput` says of which intervals the rows are needed, and what is made of them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from odfchain.branches.row_diff import RowDiff, aligned, between, net_of
from odfchain.branches.three_way import ThreeWay, merge_rows
from odfchain.errors import ChainError
from odfchain.odf.identity import Multihash
from odfchain.odf.row_hash import Numbers

_DEEPEST = 8


class Ancestors(Protocol):
    """The part of a graph of blocks that merge bases need (`odfchain.branches.branches`)."""

    def fork(self, one: Multihash, other: Multihash) -> Multihash:
        """The last common block of two chains."""

    def best_common(self, ones: Sequence[Multihash], others: Sequence[Multihash]) -> tuple[Multihash, ...]:
        """The best common ancestors."""


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
    def of(cls, graph: Ancestors, target: Multihash, source: Multihash) -> MergeInput:
        """The input of a merge of two blocks."""
        return cls.between(graph, graph.best_common([target], [source]), target, source)

    @classmethod
    def between(
        cls, graph: Ancestors, bases: Sequence[Multihash], target: Multihash, source: Multihash
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


def _merged(graph: Ancestors, blocks: Sequence[Multihash], depth: int) -> MergedState:
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


def merge_tables(
    tables: Sequence[pa.Table],
    asked: MergeInput,
    key: Sequence[str],
    event_time: str,
    *,
    by_row: bool = False,
) -> ThreeWay:
    """Merge what two sides did, by the rows (`read_rows`) of the intervals that were asked for."""
    return _Merging(tables, asked, tuple(key), event_time).merged(by_row=by_row)


def changes_of_source(
    tables: Sequence[pa.Table], asked: MergeInput, key: Sequence[str], event_time: str
) -> RowDiff:
    """The changes of the source since the base, by the same rules."""
    return _Merging(tables, asked, tuple(key), event_time).of_source()


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    """A state: how it is reached from a block, and the rows of it for keys whose true row is not known."""

    block: Multihash
    way: RowDiff
    unknown: RowDiff
    """Before and after are the same: what `way` leads to."""


class _Merging:
    def __init__(
        self, tables: Sequence[pa.Table], asked: MergeInput, key: tuple[str, ...], event_time: str
    ) -> None:
        self._asked, self._event_time = asked, event_time
        self._net = functools.cache(lambda place: _net(tables[place], key))
        self._none = _net(tables[0].slice(0, 0), key)

    def merged(self, *, by_row: bool) -> ThreeWay:
        base = self._state(self._asked.base)
        ours, theirs = (self._state(MergedState(block)) for block in (self._asked.target, self._asked.source))
        return self._three_way(base, ours, theirs, by_row=by_row)

    def of_source(self) -> RowDiff:
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
            sides.append(_without(RowDiff.joined([way, _without(base.unknown, way)]), ours.unknown))
        return merge_rows(
            *sides,
            event_time=self._event_time,
            by_row=by_row,
            baseless=_is_in(sides[1], base.unknown),
        )


def _net(rows: pa.Table, key: tuple[str, ...]) -> RowDiff:
    return net_of(rows.column(1).to_numpy(), rows.select(range(2, rows.num_columns)), key)


def _then(one: RowDiff, other: RowDiff) -> RowDiff:
    if not len(one) or not len(other):
        return one if len(one) else other
    return between(one.reversed(), other)


def _is_in(diff: RowDiff, other: RowDiff) -> Numbers:
    _, at, at_other = aligned(diff, other)
    found = np.zeros(len(diff), dtype=bool)
    found[at[(at >= 0) & (at_other >= 0)]] = True
    return found


def _without(diff: RowDiff, other: RowDiff) -> RowDiff:
    return diff.only(~_is_in(diff, other)) if len(other) and len(diff) else diff
