"""Merges over Arrow tables against the same merges as expressions of Spark's, for all types (RFC-058)."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from odfchain.ingest.merge_strategies import Changes, FaultKind, NewRows, Policies, RefusedInputError
from odfchain.odf import schema as ds
from odfchain.odf import sources as src
from odfchain.odf.arrow_schema import nullable
from odfchain.slices.writer import as_declared
from odfchain.spark.input_frames import ROW_ID
from odfchain.spark.types import as_physical, physical_struct
from tests.kit.merge_scenes import (
    NAMES,
    OPERATIONS,
    POLICIES,
    STRATEGIES,
    Scene,
    operations,
    state_of,
    strategy_of,
)
from tests.kit.spark_merge import Merged, MergeInput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from odfchain.spark.session import SparkEngine

SEEDS = {"ci": 2, "local": 4, "soak": 40, "deep": 400}[os.environ.get("HYPOTHESIS_PROFILE", "ci")]


def spark_rows(session: SparkSession, scene: Scene, rows: pa.Table, **extra: pa.Array) -> DataFrame:
    from pyspark.sql.pandas.types import to_arrow_schema

    fields = tuple(f for f in scene.fields if f.name in rows.column_names)
    kinds = nullable(to_arrow_schema(physical_struct(fields), timezone="UTC"))
    columns = [as_physical(rows[f.name].combine_chunks(), f.type) for f in kinds]
    schema = pa.schema([*[pa.field(n, v.type) for n, v in extra.items()], *kinds])
    return session.createDataFrame(pa.Table.from_arrays([*extra.values(), *columns], schema=schema))


def written(rows: pa.Table) -> list[str]:
    return [repr([repr(value) for value in row.values()]) for row in rows.to_pylist()]


def by_kernel(changes: Changes, names: list[str]) -> list[str]:
    order = changes.in_order()
    return written(changes.columns(["op", *names], order))


def by_spark(merged: Merged, scene: Scene, names: list[str]) -> list[str]:
    from pyspark.sql import functions as F

    from odfchain.spark.types import col

    ordered = merged.frame.withColumn("event_time", F.coalesce("event_time", F.timestamp_millis(F.lit(0))))
    ordered = ordered.orderBy(*[col(name).asc_nulls_first() for name in merged.order])
    found = ordered.select(col("op").cast("smallint"), *[col(n) for n in names]).toArrow().combine_chunks()
    fields = [pa.field("op", pa.uint8()), *[scene.schema.field(n) for n in names]]
    columns = [as_declared(c.combine_chunks(), f) for c, f in zip(found.columns, fields, strict=True)]
    return written(pa.Table.from_arrays(columns, schema=pa.schema(fields)))


@pytest.mark.hypothesis  # properties, though not by that library: `make soak` tries more of them
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("name", STRATEGIES)
def test_merges_are_those_of_spark(engine: SparkEngine, name: str, seed: int) -> None:
    scene = Scene(name, seed)
    compare = ("v0", "event_time") if seed % 3 == 2 else None
    strategy, rng = strategy_of(name, scene.key, compare), scene.rng
    duplicates, edits = POLICIES[(seed + 1) % len(POLICIES)]
    policies = Policies(0, duplicates, edits)
    names = list(scene.kinds)
    history: pa.Table | None = None
    for step in range(3):
        rows = scene.rows(rng.randrange(100, 300))
        if history is not None and len(history):
            # rows that were recorded come again, some of them with other values
            again = history.select(names).take(pa.array(rng.choices(range(len(history)), k=100)))
            again = again.set_column(4, scene.schema.field(4), scene.column("v0", 100, scene.schema.field(4)))
            rows = pa.concat_tables([rows, again.cast(scene.schema)]).combine_chunks()
        op = operations(scene, name, rows) if name in OPERATIONS else None
        fields = (
            [ds.DataField(name="op", type=ds.optional(ds.DataTypeInt32()))] if op else []
        ) + scene.fields
        extra = {ROW_ID: pa.array(range(len(rows)), pa.int64())} | ({"op": op} if op else {})
        data = spark_rows(engine.session, scene, rows, **extra)
        given = MergeInput(data, ds.DataSchema(fields=tuple(fields)), NAMES)
        new = NewRows(rows, np.arange(len(rows)) + 1, NAMES, policies, op)
        if "event_time" in scene.key:
            new = new.with_event_times()
            filled = new.rows
            given = MergeInput(spark_rows(engine.session, scene, filled, **extra), given.schema, NAMES)
        old = None
        if history is not None:
            stored = history if step > 1 or name == "changelog" else history.drop_columns(["v3"])
            system = {n: history[n].combine_chunks().cast(pa.int64()) for n in ("offset", "op")}
            old = spark_rows(engine.session, scene, stored.select([n for n in names if n in stored.column_names]),
                             **system)  # fmt: skip
            if len(stored.column_names) < len(history.column_names):
                place = history.column_names.index("v3")
                empty = pa.nulls(len(history), scene.schema.field("v3").type)
                history = history.set_column(place, scene.schema.field("v3"), empty)
        if name == "changelog":
            assert new.without_time() == data.where("op = 1 AND event_time IS NULL").count()
            new = new.with_times_taken_back(state_of(new, strategy, history))
            from pyspark.sql import functions as F

            given = given.with_times_taken_back(old, F.timestamp_millis(F.lit(0)))
        changes = new.merged(strategy, state_of(new, strategy, history))
        expected = given.merged(old, strategy, duplicates, edits)
        assert by_kernel(changes, names) == by_spark(expected, scene, names)
        if name in ("ledger", "snapshot"):
            counts = Counter(changes.counts)
            assert (counts["copies"], counts["differing"]) == given.repeated(scene.key, duplicates)
        if expected.recorded is not None:
            assert changes.counts["recorded"] == expected.recorded.get["recorded"]
        if expected.edits is not None:
            assert changes.counts["edits"] == expected.edits.get["edits"]
        start = 0 if history is None else len(history)
        added = changes.columns(["op", *names], changes.in_order())
        offsets = pa.array(range(start, start + len(added)), pa.uint64())
        recorded = pa.table([offsets, *added.columns], names=["offset", "op", *names])
        history = recorded if history is None else pa.concat_tables([history.cast(recorded.schema), recorded])


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
