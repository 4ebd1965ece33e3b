"""The rules of diffs and merges against plain loops over rows."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odfchain.branches.row_diff import (
    ConflictKind,
    RowDiff,
    ThreeWay,
    between,
    merge_rows,
    net_of,
)
from odfchain.errors import ChainError
from odfchain.odf.row_hash import same_cells

Row = tuple[Any, ...]
State = dict[int, Row]
SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("a", pa.string()), ("b", pa.float64())])
NAMES = SCHEMA.names[1:]
NAN = float("nan")
values = st.tuples(
    st.sampled_from([1, 2, 3, None]),
    st.sampled_from(["x", "q", None]),
    st.sampled_from([0.0, -0.0, NAN, 1.0]),
)
states = st.dictionaries(st.integers(0, 4), values, max_size=5)


def plain(row: Row | None) -> Row | None:
    if row is None:
        return None
    return tuple("NaN" if isinstance(v, float) and v != v else v for v in row)  # noqa: PLR0124


def changelog(before: State, after: State, detour: State | None = None) -> list[tuple[int, int, Row]]:
    """(operation, key, row): how a Snapshot writes the way, over another state or straight."""
    if detour is not None:
        return changelog(before, detour) + changelog(detour, after)
    found = []
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        if old is None and new is not None:
            found.append((0, key, new))
        elif new is None and old is not None:
            found.append((1, key, old))
        elif old is not None and new is not None and plain(old) != plain(new):
            found += [(2, key, old), (3, key, new)]
    return found


def diff_of(before: State, after: State, detour: State | None = None) -> RowDiff:
    log = changelog(before, after, detour)
    rows = pa.Table.from_pylist(
        [dict(zip(SCHEMA.names, (k, *row), strict=True)) for _, k, row in log], SCHEMA
    )
    return net_of(np.array([op for op, _, _ in log], dtype=np.uint64), rows, ("k",))


def applied(state: State, diff: RowDiff) -> State:
    found = dict(state)
    for key, had, has, before, after in zip(
        diff.rows_of_keys().column("k").to_pylist(), diff.had, diff.has, rows_of(diff.before), rows_of(diff.after),
        strict=True,
    ):  # fmt: skip
        assert plain(found.get(key)) == (plain(before) if had else None)
        found.pop(key, None)
        if has:
            found[key] = after
    return found


def rows_of(table: pa.Table) -> list[Row]:
    return [tuple(row[name] for name in NAMES) for row in table.to_pylist()]


def same(one: State, other: State) -> bool:
    return {k: plain(v) for k, v in one.items()} == {k: plain(v) for k, v in other.items()}


@given(states, states, states, states, states)
def test_diffs_lead_from_state_to_state(base: State, a: State, b: State, by_a: State, by_b: State) -> None:
    to_a, to_b = diff_of(base, a, by_a), diff_of(base, b, by_b)
    assert same(applied(base, to_a), a)
    assert same(applied(a, between(to_a, to_b)), b)
    assert same(applied(a, to_a.reversed()), base)
    assert len(between(to_a, diff_of(base, a))) == 0


def merged_row(base: Row | None, ours: Row | None, theirs: Row | None, *, by_row: bool) -> Row | str | None:
    """The result, or what kind of conflict it is and in which cells."""
    b, o, t = plain(base), plain(ours), plain(theirs)
    if t in (o, b):
        return ours
    if b == o:
        return theirs
    if o is None or t is None:
        return "delete-update" if o is None else "update-delete"
    assert ours is not None
    assert theirs is not None
    if o[1:] == t[1:] and (b is None or by_row):
        return ours
    if by_row:
        cells = [name for name, x, y in zip(NAMES, o, t, strict=True) if x != y and name != "t"]
        return f"{'update-update' if b else 'insert-insert'} {','.join(cells)}"
    result, torn = [], []
    for index, name in enumerate(NAMES):
        x, y = o[index], t[index]
        mine, other = (b is None or side[index] != b[index] for side in (o, t))
        value = theirs[index] if other and not mine else ours[index]
        if mine and other and x != y:
            if index > 0 or (b is not None and b[1:] in (o[1:], t[1:])):
                torn.append(name)
            elif o[1:] != t[1:]:
                value = max((v for v in (x, y) if v is not None), default=None)
        result.append(value)
    if torn:
        return f"{'update-update' if b else 'insert-insert'} {','.join(torn)}"
    return tuple(result)


def conflict_texts(merged: ThreeWay) -> dict[int, str]:
    conflicts = merged.conflicts
    return {
        key: " ".join(
            [
                kind.value,
                *([",".join(n for n in NAMES if conflicts.cells[n][i])] if conflicts_both(kind) else []),
            ]
        )
        for i, (key, kind) in enumerate(
            zip(conflicts.rows_of_keys().column("k").to_pylist(), conflicts.kinds, strict=True)
        )
    }


def conflicts_both(kind: ConflictKind) -> bool:
    return kind in (ConflictKind.INSERT_INSERT, ConflictKind.UPDATE_UPDATE)


@given(states, states, states, st.booleans())
def test_merges_are_those_of_the_rule(base: State, ours: State, theirs: State, by_row: bool) -> None:
    merged = merge_rows(diff_of(base, ours), diff_of(base, theirs), event_time="t", by_row=by_row)
    expected = {
        key: merged_row(base.get(key), ours.get(key), theirs.get(key), by_row=by_row)
        for key in base.keys() | ours.keys() | theirs.keys()
    }
    torn = {key: text for key, text in expected.items() if isinstance(text, str)}
    assert conflict_texts(merged) == torn
    result = applied(ours, merged.changes)
    for key, row in expected.items():
        assert plain(result.get(key)) == plain(ours.get(key) if key in torn else row), key  # type: ignore[arg-type]
    assert merged.conflicts.count == sum(
        1 if text.startswith(("update-delete", "delete-update")) else text.count(",") + 1
        for text in torn.values()
    )


def test_two_sides_that_say_different_things_of_their_base_are_no_diffs() -> None:
    one, other = diff_of({1: (1, "x", 1.0)}, {}), diff_of({1: (1, "q", 1.0)}, {1: (2, "q", 0.0)})
    for refused in (lambda: between(one, other), lambda: merge_rows(one, other, event_time="t")):
        with pytest.raises(ChainError, match="different things"):
            refused()


def test_a_corrected_row_without_the_one_before_it_is_no_changelog() -> None:
    rows = pa.Table.from_pylist([{"k": 7, "t": 1, "a": "x", "b": 1.0}], SCHEMA)
    with pytest.raises(ChainError, match="k=7: a"):
        net_of(np.array([3]), rows, ("k",))


@pytest.mark.parametrize(
    ("kind", "groups"),
    [
        (pa.map_(pa.string(), pa.int64()), [[[("a", 1), ("b", 2)], [("b", 2), ("a", 1)]], [[("a", 1)]], [None, None]]),
        (pa.struct([("x", pa.float64())]), [[{"x": NAN}, {"x": NAN}], [{"x": 0.0}, {"x": -0.0}], [{"x": None}]]),
        (pa.list_(pa.int64()), [[[1, 2], [1, 2]], [[2, 1]], [[]], [None]]),
        (pa.float32(), [[NAN, NAN], [0.0, -0.0], [1.5], [None]]),
        (pa.null(), [[None, None]]),
        (pa.dictionary(pa.int32(), pa.string()), [["a", "a"], ["b"], [None]]),
    ],
)  # fmt: skip
def test_cells_are_equal_where_a_person_says_so(kind: pa.DataType, groups: list[list[Any]]) -> None:
    named = [(number, value) for number, group in enumerate(groups) for value in group]
    pairs = list(itertools.product(named, named))
    left, right = (pa.chunked_array([pa.array([pair[i][1] for pair in pairs], kind)]) for i in (0, 1))
    assert same_cells(left, right).tolist() == [one == other for (one, _), (other, _) in pairs]
