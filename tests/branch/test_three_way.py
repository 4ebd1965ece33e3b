"""The rules of diffs and merges against plain loops over rows."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odfchain.branches.row_diff import ConflictKind, RowDiff, ThreeWay, between, merge_rows, net_of
from odfchain.errors import ChainError
from odfchain.odf.row_hash import same_cells
from tests.kit.plain_merges import NAMES, State, applied, changelog, merged_row, plain

SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("a", pa.string()), ("b", pa.float64())])
NAN = float("nan")
values = st.tuples(
    st.sampled_from([1, 2, 3, None]),
    st.sampled_from(["x", "q", None]),
    st.sampled_from([0.0, -0.0, NAN, 1.0]),
)
states = st.dictionaries(st.integers(0, 4), values, max_size=5)


def diff_of(before: State, after: State, *detour: State) -> RowDiff:
    """The difference by the log of the straight way, or of one over another state."""
    log = [change for way in itertools.pairwise((before, *detour, after)) for change in changelog(*way)]
    rows = pa.Table.from_pylist(
        [dict(zip(SCHEMA.names, (k, *row), strict=True)) for _, k, row in log], SCHEMA
    )
    return net_of(np.array([op for op, _, _ in log], dtype=np.uint64), rows, ("k",))


def same(one: State, other: State) -> bool:
    return {k: plain(v) for k, v in one.items()} == {k: plain(v) for k, v in other.items()}


@given(states, states, states, states, states)
def test_diffs_lead_from_state_to_state(base: State, a: State, b: State, by_a: State, by_b: State) -> None:
    to_a, to_b = diff_of(base, a, by_a), diff_of(base, b, by_b)
    assert same(applied(base, to_a), a)
    assert same(applied(a, between(to_a, to_b)), b)
    assert same(applied(a, to_a.reversed()), base)
    assert len(between(to_a, diff_of(base, a))) == 0


def conflict_texts(merged: ThreeWay) -> dict[int, str]:
    """Of each key in conflict the kind, and the cells where both sides have a row."""
    found, conflicts = {}, merged.conflicts
    keys = conflicts.rows_of_keys().column("k").to_pylist()
    for place, (key, kind) in enumerate(zip(keys, conflicts.kinds, strict=True)):
        cells = ",".join(name for name in NAMES if conflicts.cells[name][place])
        both = kind in (ConflictKind.INSERT_INSERT, ConflictKind.UPDATE_UPDATE)
        found[key] = f"{kind.value} {cells}" if both else kind.value
    return found


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
        assert plain(result.get(key)) == plain(ours.get(key) if key in torn else row), key
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
