"""The kind of a query follows from its plan: what looks bounded and is not counts as unbounded."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from odfchain.odf.sources import SqlQueryStep, TemporalTable, TransformSql
from odfchain.odf.times import Timestamp
from odfchain.progress import SILENT
from odfchain.transform.operators import QueryKind
from odfchain.transform.spark_engine import QueryCheck, SparkTransformEngine
from odfchain.transform.step_files import StepInput
from tests.kit.support import fixture
from tests.kit.transform_cases import MS, InputSlice, input_schema, request_of

SCHEMA = input_schema({"k": pa.string(), "v": pa.int64(), "t": MS, "d": pa.date32()})


def check(engine: SparkTransformEngine, folder: Path, sql: str, *temporal: TemporalTable) -> QueryCheck:
    transform = TransformSql(
        engine="spark", queries=(SqlQueryStep(query=sql),), temporal_tables=temporal or None
    )
    inputs = [InputSlice(name, SCHEMA) for name in ("a", "b")]
    request = request_of(folder, 0, transform, inputs, system_time=Timestamp(0), next_offset=0)
    found = [StepInput.of(given) for given in request.query_inputs]
    return engine.check(transform, found, request.vocab, SILENT)


def grouped(by: str) -> str:
    return f"SELECT max(event_time) AS event_time, count(*) AS n FROM a GROUP BY {by}"


KINDS = fixture("queries/kinds.yaml")
STATELESS, BOUNDED = KINDS["stateless"], KINDS["bounded"]
UNBOUNDED = {sql: named for named, texts in KINDS["unbounded"].items() for sql in texts}


@pytest.mark.parametrize("sql", STATELESS, ids=range(len(STATELESS)))
def test_what_looks_at_each_row_by_itself_is_stateless(
    transforms: SparkTransformEngine, tmp_path: Path, sql: str
) -> None:
    found = check(transforms, tmp_path, sql)
    assert (found.kind, found.notes) == (QueryKind.STATELESS, ())


@pytest.mark.parametrize("sql", BOUNDED, ids=range(len(BOUNDED)))
def test_what_is_complete_when_the_watermark_has_passed_is_bounded(
    transforms: SparkTransformEngine, tmp_path: Path, sql: str
) -> None:
    found = check(transforms, tmp_path, sql)
    assert found.kind is QueryKind.WINDOWED
    assert not any("grows" in note for note in found.notes)


@pytest.mark.parametrize("sql", UNBOUNDED, ids=range(len(UNBOUNDED)))
def test_anything_else_is_unbounded_and_the_note_names_what_makes_it_so(
    transforms: SparkTransformEngine, tmp_path: Path, sql: str
) -> None:
    found = check(transforms, tmp_path, sql)
    assert found.kind is QueryKind.RETRACTING
    (note,) = found.notes
    assert UNBOUNDED[sql] in note


def test_every_construct_is_named_once(transforms: SparkTransformEngine, tmp_path: Path) -> None:
    sql = f"SELECT event_time, n FROM ({grouped('k')}) UNION ALL ({grouped('v')}) ORDER BY n LIMIT 2"
    (note,) = check(transforms, tmp_path, sql).notes
    assert note.count("GROUP BY without a time") == 1
    assert note.count("LIMIT") == 1


def test_a_temporal_table_is_unbounded(transforms: SparkTransformEngine, tmp_path: Path) -> None:
    valid = "a.k = b.k AND a.event_time >= b.__valid_from AND a.event_time < b.__valid_to"
    sql = f"SELECT a.event_time, b.event_time AS other FROM a JOIN b ON {valid}"
    found = check(transforms, tmp_path, sql, TemporalTable(name="b", primary_key=("k",)))
    assert found.kind is QueryKind.RETRACTING
    assert len(found.notes) == 1


@pytest.mark.parametrize("time", ["t AS event_time", "greatest(event_time, t) AS event_time"])
def test_an_event_time_that_does_not_follow_from_the_inputs_is_noted(
    transforms: SparkTransformEngine, tmp_path: Path, time: str
) -> None:
    found = check(transforms, tmp_path, f"SELECT {time}, k FROM a")
    assert found.kind is QueryKind.STATELESS
    assert "no watermark" in found.notes[0]
