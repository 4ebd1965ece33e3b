"""`merge_cases.json`: every case. Deliberate differences are listed in RFC-009 and here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from odfchain.errors import SchemaError
from odfchain.ingest.merge_strategies import NewRows, Policies, RefusedInputError
from odfchain.ingest.schema_fit import check_strategy
from odfchain.odf import schema as ds
from odfchain.odf.events import DatasetVocabulary
from odfchain.odf.sources import (
    MergeStrategy,
    MergeStrategyAppend,
    MergeStrategyChangelogStream,
    MergeStrategyLedger,
    MergeStrategySnapshot,
    MergeStrategyUpsertStream,
)
from odfchain.slices.state import newest_of
from tests.kit.merge_scenes import state_of
from tests.kit.support import ROOT, cases, conformance

REFUSED = {
    "snapshot.duplicate_keys_first_input": "occurs twice",
    "snapshot.duplicate_keys_one_equal_one_changed": "occurs twice",
    "snapshot.duplicate_new_key": "occurs twice",
    "snapshot.null_key_in_new": "is null",
    "upsert.null_key_collapsed_then_always_appended": "is null",
}
"""What the error says. Keys of nulls alone and keys of rows that differ stop the run, where the reference writes rows that it cannot keep
apart."""

DIFFERENT: dict[str, list[list[Any]]] = {
    "ledger.duplicates_in_first_input": [[0, 2020, "v", 1]],
    "ledger.null_key_never_matches": [],
    "upsert.correct_from_treated_as_upsert": [[2, 2020, "seattle", 2], [3, 2020, "seattle", 9]],
}
"""Copies of a row are one row; a null in a key is equal to a null; `-C` in an upsert stream states an old value and
does not undo the `+C` beside it."""


def strategy_of(case: dict[str, Any]) -> MergeStrategy:
    key = tuple(case["params"].get("primaryKey", ()))
    match case["strategy"]:
        case "Append":
            return MergeStrategyAppend()
        case "Ledger":
            return MergeStrategyLedger(primary_key=key)
        case "Snapshot":
            compare = case["params"].get("compareColumns")
            return MergeStrategySnapshot(
                primary_key=key, compare_columns=tuple(compare) if compare is not None else None
            )
        case "ChangelogStream":
            return MergeStrategyChangelogStream(primary_key=key)
        case "UpsertStream":
            return MergeStrategyUpsertStream(primary_key=key)
    raise AssertionError(case["strategy"])


NO_TIME = -1
"""Stands for event times that are filled in, which the cases leave open."""


def type_of(name: str) -> pa.DataType:
    return pa.string() if name in ("city", "note", "date", "event_time") else pa.int64()


def table(names: list[str], rows: list[list[Any]]) -> pa.Table:
    types = {"op": pa.uint8(), "offset": pa.uint64()}
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    arrays = [pa.array(values, types.get(n) or type_of(n)) for n, values in zip(names, columns, strict=True)]
    return pa.table(arrays, names=names)


def history_of(case: dict[str, Any], rows: list[list[Any]] | None) -> pa.Table | None:
    if not rows:
        return None
    columns = ["offset", "op", *case["columns"]]
    return timed(case, table(columns, [[offset, *row] for offset, row in enumerate(rows)]))


def timed(case: dict[str, Any], rows: pa.Table) -> pa.Table:
    """The rows with years, or texts, as event times."""
    name = case["event_time_column"]
    numbers = [
        None if v is None else int("".join(filter(str.isdigit, str(v)))) for v in rows[name].to_pylist()
    ]
    times = pa.array(numbers, pa.int64()).cast(pa.timestamp("ms", "UTC"))
    return rows.set_column(rows.column_names.index(name), name, times)


def input_of(case: dict[str, Any]) -> NewRows:
    columns, given = case["columns"], case.get("new_columns", case["columns"])
    operations, rows = [], []
    for values in case["new"]:
        op = values[:1] if case["new_has_op"] else []
        row = dict(zip(given, values[len(op) :], strict=True))
        operations += op
        rows.append([row.get(name) for name in columns])
    vocabulary = DatasetVocabulary(event_time_column=case["event_time_column"])
    op = pa.array(operations, pa.int32()) if case["new_has_op"] else None
    new = timed(case, table(columns, rows))
    return NewRows(new, np.arange(len(new)) + 1, vocabulary, Policies(NO_TIME), op)


def rows_of(case: dict[str, Any], rows: pa.Table, known: list[list[Any]]) -> list[list[Any]]:
    """The rows as the cases have them: event times as they were written."""
    name = case["event_time_column"]
    place = case["columns"].index(name)
    spelled = {int("".join(filter(str.isdigit, str(v)))): v for row in known if (v := row[place]) is not None}
    numbers = rows[name].cast(pa.int64()).to_pylist()
    values = [None if number == NO_TIME else spelled[number] for number in numbers]
    found = [list(row.values()) for row in rows.to_pylist()]
    at = rows.column_names.index(name)
    return [[*row[:at], value, *row[at + 1 :]] for row, value in zip(found, values, strict=True)]


@pytest.mark.parametrize("case", cases("merge_cases", "cases"))
def test_case(case: dict[str, Any]) -> None:
    columns, strategy = case["columns"], strategy_of(case)
    if "expected_error" in case:
        fields = tuple(ds.DataField(name=n, type=ds.DataTypeString()) for n in columns)
        with pytest.raises(SchemaError, match=r"foo|empty"):
            check_strategy(strategy, ds.DataSchema(fields=fields), "input.csv")
        return
    history = history_of(case, case["prior"])
    new = input_of(case)
    recorded = state_of(new, strategy, history)
    if case["id"] in REFUSED:
        with pytest.raises(RefusedInputError, match=REFUSED[case["id"]]):
            new.merged(strategy, recorded)
        return
    changes = new.merged(strategy, recorded)
    expected = DIFFERENT.get(case["id"], case.get("correct_expected", case["expected"]))
    found = changes.columns(["op", *columns], changes.in_order())
    known = [row[len(row) - len(columns) :] for row in [*(case["prior"] or []), *expected]]
    assert rows_of(case, found, known) == expected


@pytest.mark.parametrize("case", cases("merge_cases", "projection_cases"))
def test_projection(case: dict[str, Any]) -> None:
    vocabulary = DatasetVocabulary(event_time_column=case["event_time_column"])
    history = history_of(case, case["ledger"])
    assert history is not None
    found = newest_of(history.to_batches(), case["primaryKey"], vocabulary)
    rows = (
        []
        if found is None
        else rows_of(case, found[0].select(case["columns"]), [r[1:] for r in case["ledger"]])
    )
    assert sorted(map(repr, rows)) == sorted(repr(row[1:]) for row in case["expected_state_unordered"])


def test_where_we_differ_stands_in_an_rfc() -> None:
    text = (ROOT / "rfcs" / "009-merge-and-writer-rules.md").read_text(encoding="utf-8")
    bugs = [c["id"] for c in conformance("merge_cases")["cases"] if c.get("known_bug")]
    for case_id in [*REFUSED, *DIFFERENT, *bugs]:
        assert f"`{case_id}`" in text, f"{case_id} is not explained"
