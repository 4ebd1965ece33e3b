"""Merges over Arrow tables: which row is named by a refusal, and inputs without rows (RFC-058)."""

from __future__ import annotations

import dataclasses
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from odfchain.ingest.merge_strategies import FaultKind, NewRows, Policies, RefusedInputError
from odfchain.odf import sources as src
from tests.kit.merge_scenes import NAMES, OPERATIONS, STRATEGIES, state_of, strategy_of

PLAIN = Policies(0)


def new_rows(policies: Policies = PLAIN, op: list[Any] | None = None, **columns: list[Any]) -> NewRows:
    rows = pa.table({name: pa.array(values) for name, values in columns.items()})
    times = pa.nulls(len(rows), pa.timestamp("ms", "UTC"))
    rows = rows if "event_time" in columns else rows.append_column("event_time", times)
    return NewRows(rows, np.arange(len(rows)) * 10 + 3, NAMES, policies, None if op is None else pa.array(op))


@pytest.mark.parametrize(
    ("op", "bad"),
    [
        (["0", " +1 ", "x"], "'x' is not"),
        (["0", "1.0"], "'1.0' is not"),
        ([0.0, 1.5], "1.5 is not"),
        ([True, None], "None is not"),
        ([0, -1], "-1 is not"),
        ([Decimal("1.0"), Decimal("1.5")], r"Decimal\('1.5'\) is not"),
        ([b"0"], "b'0' is not"),
    ],
)
def test_the_first_operation_that_is_none(op: list[Any], bad: str) -> None:
    rows = new_rows(op=op, k=list(range(len(op))))
    with pytest.raises(RefusedInputError, match=f"column `op`: {bad}") as refused:
        rows.merged(src.MergeStrategyChangelogStream(primary_key=("k",)), None)
    assert refused.value.fault.row == 3 + 10 * (len(op) - 1)


def test_rows_are_named_by_their_numbers() -> None:
    ledger = src.MergeStrategyLedger(primary_key=("k",))
    with pytest.raises(RefusedInputError, match="primary key column `k` is null") as refused:
        new_rows(k=[1, None, 1], v=[1, 2, 3]).merged(ledger, None)
    assert refused.value.fault.row == 13
    with pytest.raises(RefusedInputError, match="occurs twice") as refused:
        new_rows(k=[1, 2, 1, 1], v=[1, 2, 1, 3]).merged(ledger, None)
    assert (refused.value.fault.row, refused.value.fault.other) == (33, 3)
    future = Policies(0, latest_ms=5, bound="the bound")
    times = pa.array([9, 5, 6], pa.timestamp("ms", "UTC")).to_pylist()
    with pytest.raises(
        RefusedInputError, match=r"1970-01-01 00:00:00\.009, is later than the bound"
    ) as refused:
        new_rows(future, k=[1, 2, 3], event_time=times).merged(ledger, None)
    assert (refused.value.fault.row, refused.value.fault.kind) == (3, FaultKind.FUTURE)


@pytest.mark.parametrize("name", STRATEGIES)
def test_an_input_without_rows(name: str) -> None:
    rows = new_rows(k=[1], v=[1], op=[0] if name in OPERATIONS else None)
    empty = dataclasses.replace(rows, rows=rows.rows.slice(0, 0), numbers=rows.numbers[:0])
    empty = dataclasses.replace(empty, operations=None if rows.operations is None else rows.operations[:0])
    columns = {"offset": [0], "op": [0], **rows.rows.to_pydict()}
    recorded = pa.table({n: pa.array(v, rows.rows.schema.field(n).type if n in rows.rows.column_names else None)
                         for n, v in columns.items()})  # fmt: skip
    strategy = strategy_of(name, ("k",), None)
    assert len(empty.merged(strategy, None).in_order()) == 0
    changes = empty.merged(strategy, state_of(empty, strategy, recorded))
    assert changes.columns(["op"], changes.in_order())["op"].to_pylist() == [1] * (name == "snapshot")
