"""Merges in random histories, criss-cross ones included, against plain loops over dictionaries."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from odfchain.branches.merging import taken_rows
from odfchain.branches.row_diff import MergedTables, MergeInput, ThreeWay
from odfchain.errors import ChainError
from odfchain.odf.identity import Multihash
from tests.kit import plain_merges
from tests.kit.plain_merges import Row, State, changelog
from tests.kit.support import hash_of

UNKNOWN = "unknown"
SCHEMA = pa.schema(
    [("offset", pa.uint64()), ("op", pa.uint8()), ("k", pa.string()), ("t", pa.int64()), ("a", pa.string()),
     ("b", pa.string())]
)  # fmt: skip


@dataclass
class Block:
    """A block of a history: what came before it, what it merged, and its rows."""

    number: int
    before: Multihash | None
    merged: Multihash | None
    rows: list[tuple[int, str, Row]]
    state: State


@dataclass
class Histories:
    """Blocks in memory; answers what a graph is asked, by sets."""

    blocks: dict[Multihash, Block] = field(default_factory=dict)
    ancestors: dict[Multihash, frozenset[Multihash]] = field(default_factory=dict)
    virtual: int = 0
    unknown: int = 0

    def add(self, before: Multihash | None, state: State, merged: Multihash | None = None) -> Multihash:
        old = self.blocks[before].state if before else {}
        number = self.blocks[before].number + 1 if before else 0
        name = hash_of(f"{len(self.blocks)}")
        self.blocks[name] = Block(number, before, merged, changelog(old, state), state)
        known = [self.ancestors[other] for other in (before, merged) if other]
        self.ancestors[name] = frozenset([name]).union(*known)
        return name

    def chain(self, block: Multihash | None) -> list[Multihash]:
        """Newest first."""
        found = []
        while block is not None:
            found.append(block)
            block = self.blocks[block].before
        return found

    def fork(self, one: Multihash, other: Multihash) -> Multihash:
        known = set(self.chain(one))
        return next(block for block in self.chain(other) if block in known)

    def best_common(self, ones: Sequence[Multihash], others: Sequence[Multihash]) -> tuple[Multihash, ...]:
        mine, theirs = (
            frozenset[Multihash]().union(*(self.ancestors[b] for b in side)) for side in (ones, others)
        )
        common = mine & theirs
        best = [b for b in common if not any(b in self.ancestors[c] for c in common if c != b)]
        return tuple(sorted(best, key=lambda b: (self.blocks[b].number, str(b))))

    def table(self, after: Multihash, upto: Multihash) -> pa.Table:
        chain = self.chain(upto)
        blocks = [self.blocks[name] for name in chain[: chain.index(after)]][::-1]
        rows = [row for block in blocks for row in block.rows]
        columns = [range(len(rows)), [op for op, _, _ in rows], [k for _, k, _ in rows]]
        columns += [[row[i] for _, _, row in rows] for i in range(3)]
        return pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)

    def state_of(self, blocks: Sequence[Multihash], depth: int = 1) -> State:
        """The state of a base, by definition: of several blocks, what they merge into."""
        assert depth <= 9
        state = self.blocks[blocks[0]].state
        for place, block in enumerate(blocks[1:], 1):
            self.virtual += 1
            base = self.state_of(self.best_common(blocks[:place], [block]), depth + 1)
            state = merged_states(base, state, self.blocks[block].state)
        return state


def merged_states(base: State, ours: State, theirs: State, *, by_row: bool = False) -> State:
    """Ours with theirs merged in; rows in conflict are UNKNOWN."""
    found: State = {}
    for key in base.keys() | ours.keys() | theirs.keys():
        row = merged_row(base.get(key), ours.get(key), theirs.get(key), by_row=by_row)
        if row is not None:
            found[key] = row
    return found


def merged_row(base: Any, ours: Any, theirs: Any, *, by_row: bool) -> Any:
    """By the rule, where what is not known stays so."""
    if ours == UNKNOWN or (base == UNKNOWN and ours != theirs and None in (ours, theirs)):
        return UNKNOWN
    found = plain_merges.merged_row(None if base == UNKNOWN else base, ours, theirs, by_row=by_row)
    return UNKNOWN if isinstance(found, str) else found


def applied(state: State, merge: ThreeWay) -> State:
    """Our state after a merge; keys in conflict are UNKNOWN."""
    conflicts = merge.conflicts.rows_of_keys().column("k").to_pylist()
    return plain_merges.applied(state, merge.changes) | dict.fromkeys(conflicts, UNKNOWN)


def but_for_times(state: State) -> State:
    return {key: row if row == UNKNOWN else row[1:] for key, row in state.items()}


def edited(rng: random.Random, state: State) -> State:
    found = dict(state)
    for key in rng.sample("pqrs", rng.choice([0, 1, 1, 2])):
        row = found.pop(key, None)
        if row is None or rng.random() < 0.8:
            new = list(row or (0, "x", "x"))
            for index in rng.sample(range(3), rng.choice([1, 1, 2])):
                new[index] = rng.randrange(3) if index == 0 else rng.choice("xyz")
            found[key] = tuple(new)
    return found


def history(seed: int, steps: int) -> tuple[int, int, int]:
    """(merges, candidates that were merged into bases, bases with keys in conflict) of a random history, all as they have to be."""
    rng, all_blocks = random.Random(seed), Histories()
    first = all_blocks.add(None, {"p": (0, "x", "x"), "q": (0, "x", "x")})
    heads = [first] * rng.choice([2, 2, 3, 4])
    merges = 0
    for _ in range(steps):
        on = rng.randrange(len(heads))
        target = heads[on]
        if rng.random() < 0.4:
            heads[on] = all_blocks.add(target, edited(rng, all_blocks.blocks[target].state))
            continue
        # a head, or what was one just now: so the branches are merged into each other crosswise
        source = rng.choice([*heads, *list(all_blocks.blocks)[-8:]])
        if source in all_blocks.ancestors[target]:
            continue
        merges += 1
        by_row = rng.random() < 0.2
        try:
            asked = MergeInput.of(all_blocks, target, source)
        except ChainError:
            continue
        tables = [all_blocks.table(*ends) for ends in asked.intervals]
        merge = MergedTables(tables, asked, ("k",), "t").merged(by_row=by_row)
        ours, theirs = (all_blocks.blocks[b].state for b in (target, source))
        base = all_blocks.state_of(asked.bases)
        all_blocks.unknown += UNKNOWN in base.values()
        expected = merged_states(base, ours, theirs, by_row=by_row)
        result = applied(ours, merge)
        assert result == expected, (seed, base, ours, theirs)
        if rng.random() < 0.2:
            other_way = MergeInput.between(all_blocks, asked.bases, source, target)
            tables = [all_blocks.table(*ends) for ends in other_way.intervals]
            other = applied(theirs, MergedTables(tables, other_way, ("k",), "t").merged(by_row=by_row))
            # ours stays where only times of observation differ
            assert but_for_times(other) == but_for_times(result)
        # whoever decides takes one of the sides, or something else
        for key, row in list(result.items()):
            if row == UNKNOWN:
                taken = rng.choice([ours.get(key), theirs.get(key), (1, "w", "w")])
                result.pop(key)
                if taken is not None:
                    result[key] = taken
        heads[on] = all_blocks.add(target, result, source)
    return merges, all_blocks.virtual, all_blocks.unknown


@pytest.mark.parametrize(
    "seeds",
    [range(12), *(pytest.param(range(n, n + 12), marks=pytest.mark.soak) for n in range(12, 180, 12))],
)
def test_merges_of_random_histories_are_as_by_definition(seeds: range) -> None:
    counts = np.array([history(seed, 60) for seed in seeds]).sum(axis=0)
    merges, virtual, unknown = counts.tolist()
    assert (merges >= 150, virtual >= 25, unknown >= 3) == (True, True, True)


def hashed(all_blocks: Histories, after: Multihash, upto: Multihash) -> tuple[Any, Any]:
    rows = all_blocks.table(after, upto)["a"].to_pylist()
    return np.array([ord(row) for row in rows], dtype=np.int64), np.ones(len(rows), dtype=np.int64)


def appends(seed: int, steps: int) -> tuple[int, int]:
    """(merges, merges of several bases): no row is lost, and none is there twice."""
    rng, all_blocks = random.Random(seed), Histories()
    first = all_blocks.add(None, {})
    own: dict[Multihash, list[str]] = {first: []}
    heads, merges, several = [first] * rng.choice([2, 3, 4]), 0, 0

    def add(before: Multihash, rows: list[str], merged: Multihash | None = None) -> Multihash:
        block = all_blocks.add(before, {}, merged)
        all_blocks.blocks[block].rows = [(0, "", (0, row, "")) for row in rows]
        own[block] = [] if merged else rows
        return block

    for _ in range(steps):
        on = rng.randrange(len(heads))
        if rng.random() < 0.4:
            heads[on] = add(heads[on], rng.choices("xyz", k=rng.randrange(3)))
            continue
        target, source = heads[on], rng.choice([*heads, *list(all_blocks.blocks)[-8:]])
        if source in all_blocks.ancestors[target]:
            continue
        try:
            asked = MergeInput.of(all_blocks, target, source)
        except ChainError:
            continue
        merges, several = merges + 1, several + (len(asked.bases) > 1)
        taken: list[str] = []
        place = asked.ways[asked.base.block, source][1]
        if place is not None:
            found = [hashed(all_blocks, *ends) for ends in asked.intervals]
            mask = taken_rows(asked, found)
            taken = [chr(row) for row, wanted in zip(found[place][0], mask, strict=True) if wanted]
        heads[on] = add(target, taken, source)
        for head in heads:
            there = [
                row for block in all_blocks.chain(head) for _, _, (_, row, _) in all_blocks.blocks[block].rows
            ]
            assert Counter(there) == Counter(
                row for block in all_blocks.ancestors[head] for row in own[block]
            )
    return merges, several


@pytest.mark.parametrize(
    "seeds",
    [range(15), *(pytest.param(range(n, n + 15), marks=pytest.mark.soak) for n in range(15, 150, 15))],
)
def test_appended_rows_are_neither_lost_nor_doubled(seeds: range) -> None:
    merges, several = np.array([appends(seed, 60) for seed in seeds]).sum(axis=0).tolist()
    assert (merges >= 200, several >= 20) == (True, True)
