"""`merge_cases.json`: every case, on Spark. Deliberate differences are listed in RFC-009 and here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from odfchain.errors import BadInputError, IncompatibleSchemaError
from odfchain.ingest.merge_strategies import (
    Merged,
    MergeInput,
    current_state,
)
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
from odfchain.spark.input_frames import ROW_ID
from odfchain.text import find_marker
from odfchain.workspace.config import DuplicateKeys
from tests.kit.support import ROOT, cases, conformance

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from odfchain.spark.session import SparkEngine

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


def type_of(name: str) -> ds.DataType:
    return ds.DataTypeString() if name in ("city", "note", "date", "event_time") else ds.DataTypeInt64()


def frame(session: SparkSession, names: list[str], rows: list[list[Any]]) -> DataFrame:
    types = {"op": "int", "offset": "bigint", ROW_ID: "bigint"}
    columns = [
        f"`{n}` {types.get(n) or ('string' if isinstance(type_of(n), ds.DataTypeString) else 'bigint')}"
        for n in names
    ]
    return session.createDataFrame([tuple(row) for row in rows], ", ".join(columns))


def history_of(session: SparkSession, columns: list[str], prior: list[list[Any]] | None) -> DataFrame | None:
    if not prior:
        return None
    return frame(session, ["offset", "op", *columns], [[offset, *row] for offset, row in enumerate(prior)])


def input_of(session: SparkSession, case: dict[str, Any]) -> MergeInput:
    columns, given = case["columns"], case.get("new_columns", case["columns"])
    event_time = case["event_time_column"]
    rows = []
    for number, values in enumerate(case["new"]):
        op = values[:1] if case["new_has_op"] else []
        row = dict(zip(given, values[len(op) :], strict=True))
        rows.append([number, *op, *[row.get(name) for name in columns]])
    names = (["op"] if case["new_has_op"] else []) + columns
    fields = [
        ds.DataField(name=n, type=ds.DataTypeInt32() if n == "op" else ds.optional(type_of(n))) for n in names
    ]
    return MergeInput(
        frame(session, [ROW_ID, *names], rows),
        ds.DataSchema(fields=tuple(fields)),
        DatasetVocabulary(event_time_column=event_time),
        "input.csv",
    )


def checked_rows(
    merged: Merged, new: MergeInput, columns: list[str], strategy: MergeStrategy
) -> list[list[Any]]:
    """The rows to append, or why the input is refused."""
    key = strategy.primary_key
    try:
        rows = merged.frame.orderBy(*merged.order).collect()
    except Exception as error:
        marked = find_marker(str(error))
        cause = new.first_bad_key(key) if marked is not None and marked["kind"] == "null-key" else None
        raise cause or error from error
    if merged.duplicates is not None and merged.duplicates.get["repeated"]:
        new.check_repeated(key, DuplicateKeys.REFUSE)
    return [[row["op"], *[row[c] for c in columns]] for row in rows]


@pytest.mark.parametrize("case", cases("merge_cases", "cases"))
def test_case(case: dict[str, Any], engine: SparkEngine) -> None:
    session, columns = engine.session, case["columns"]
    new = input_of(session, case)
    history = history_of(session, columns, case["prior"])
    strategy = strategy_of(case)
    if "expected_error" in case:
        with pytest.raises(IncompatibleSchemaError, match=r"foo|empty"):
            new.merged(history, strategy)
        return
    merged = new.merged(history, strategy)
    if case["id"] in REFUSED:
        with pytest.raises(BadInputError, match=REFUSED[case["id"]]):
            checked_rows(merged, new, columns, strategy)
        return
    expected = DIFFERENT.get(case["id"], case.get("correct_expected", case["expected"]))
    assert checked_rows(merged, new, columns, strategy) == expected


@pytest.mark.parametrize("case", cases("merge_cases", "projection_cases"))
def test_projection(case: dict[str, Any], engine: SparkEngine) -> None:
    history = history_of(engine.session, case["columns"], case["ledger"])
    assert history is not None
    new = input_of(engine.session, case | {"new": [], "new_has_op": False})
    state = current_state(history, tuple(case["primaryKey"]), new)
    found = [tuple(row[f"__odfchain_old_{c}"] for c in case["columns"]) for row in state.collect()]
    assert sorted(found) == sorted(tuple(row[1:]) for row in case["expected_state_unordered"])


def test_where_we_differ_stands_in_an_rfc() -> None:
    text = (ROOT / "rfcs" / "009-merge-and-writer-rules.md").read_text(encoding="utf-8")
    bugs = [c["id"] for c in conformance("merge_cases")["cases"] if c.get("known_bug")]
    for case_id in [*REFUSED, *DIFFERENT, *bugs]:
        assert f"`{case_id}`" in text, f"{case_id} is not explained"
