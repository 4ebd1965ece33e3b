"""The kind of a query follows from its plan: what looks bounded and is not counts as unbounded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from odfchain.odf.sources import SqlQueryStep, TemporalTable, TransformSql
from odfchain.odf.times import Timestamp
from odfchain.progress import SILENT
from odfchain.transform.operators import QueryKind
from odfchain.transform.spark_engine import QueryCheck, SparkTransformEngine
from odfchain.transform.step_files import StepInput
from tests.kit.transform_cases import MS, InputSlice, input_schema, request_of

if TYPE_CHECKING:
    from odfchain.spark.session import SparkEngine

SCHEMA = input_schema({"k": pa.string(), "v": pa.int64(), "t": MS, "d": pa.date32()})
GROUPS, OVER, DISTINCT = (
    "GROUP BY without a time",
    "OVER without a time in PARTITION BY",
    "DISTINCT without a time",
)
JOIN = "JOIN without bounds on the difference of the times"


@pytest.fixture(scope="module")
def transforms(engine: SparkEngine) -> SparkTransformEngine:
    return SparkTransformEngine(lambda: engine.session)


def check(engine: SparkTransformEngine, folder: Path, sql: str, *temporal: TemporalTable) -> QueryCheck:
    transform = TransformSql(
        engine="spark", queries=(SqlQueryStep(query=sql),), temporal_tables=temporal or None
    )
    inputs = [InputSlice(alias=name, schema=SCHEMA) for name in ("a", "b")]
    request = request_of(folder, 0, transform, inputs, system_time=Timestamp(0), next_offset=0)
    found = [StepInput.of(given) for given in request.query_inputs]
    return engine.check(transform, found, request.vocab, SILENT)


def grouped(by: str) -> str:
    return f"SELECT max(event_time) AS event_time, count(*) AS n FROM a GROUP BY {by}"


def joined(condition: str, kind: str = "", *, where: str = "true") -> str:
    return f"SELECT a.event_time, b.event_time AS other FROM a {kind} JOIN b ON {condition} WHERE {where}"


STATELESS = [
    "SELECT * EXCEPT (offset, system_time) FROM a WHERE v > 1",
    "SELECT event_time + INTERVAL 1 DAY AS event_time, upper(k) AS k FROM a",
    "SELECT event_time, explode(array(k, 'x')) AS k FROM a",
    "SELECT window(event_time, '2 hours', '1 hour').start AS event_time, k FROM a",
    "SELECT event_time, k FROM a UNION ALL SELECT event_time, k FROM b",
    "WITH big AS (SELECT * FROM a WHERE v > 9) SELECT event_time, k FROM big ORDER BY k",
    "SELECT a.event_time, c.name FROM a JOIN (VALUES ('x', 'X')) AS c(k, name) ON a.k = c.k",
    "SELECT a.event_time, c.name FROM a LEFT JOIN (VALUES ('x', 'X')) AS c(k, name) ON a.k = c.k",
]

BOUNDED = [
    grouped("window(event_time, '1 day'), k"),
    grouped("window(event_time, '1 day', '6 hours')"),
    grouped("session_window(event_time, '2 hours'), k"),
    grouped("date_trunc('HOUR', event_time), k HAVING count(*) > 1"),
    grouped("CAST(event_time AS DATE)"),
    grouped("to_date(event_time)"),
    grouped("trunc(CAST(event_time AS DATE), 'MONTH')"),
    grouped("CAST(event_time AS DATE) + INTERVAL 1 MONTH"),
    grouped("event_time, k"),
    grouped("date_trunc('DAY', event_time - INTERVAL 6 HOURS)"),
    grouped("date_trunc('DAY', timestampadd(HOUR, 6, event_time))"),
    "SELECT DISTINCT event_time, k FROM a",
    "SELECT event_time, k FROM a UNION SELECT event_time, k FROM b",
    "SELECT event_time, rank() OVER (PARTITION BY event_time ORDER BY v, offset) AS r FROM a",
    "SELECT window(event_time, '1 day').start AS event_time, count(DISTINCT k) AS n FROM a GROUP BY 1",
    "SELECT * FROM (SELECT date_trunc('DAY', event_time) AS event_time, k, v FROM a) PIVOT (sum(v) FOR k IN ('x'))",
    joined("a.event_time = b.event_time AND a.k = b.k"),
    joined("a.k = b.k AND b.event_time BETWEEN a.event_time AND a.event_time + INTERVAL 2 DAYS", "LEFT"),
    joined("a.event_time - INTERVAL 1 DAY <= b.event_time AND a.event_time > b.event_time", "RIGHT"),
    joined("a.k = b.k", where="a.event_time >= b.event_time AND a.event_time < b.event_time + INTERVAL 1 HOUR"),
]  # fmt: skip

UNBOUNDED = {
    grouped("k"): GROUPS,
    grouped("window(t, '1 day')"): GROUPS,
    grouped("window(CAST(v AS TIMESTAMP), '1 day')"): GROUPS,
    grouped("d"): GROUPS,
    grouped("unix_millis(event_time)"): GROUPS,
    grouped("timestamp_seconds(unix_seconds(event_time))"): GROUPS,
    grouped("year(event_time)"): GROUPS,
    grouped("date_format(event_time, 'yyyy-MM-dd')"): GROUPS,
    grouped("CAST(event_time AS STRING)"): GROUPS,
    grouped("date_trunc(k, event_time)"): GROUPS,
    grouped("date_trunc('DAY', greatest(event_time, t))"): GROUPS,
    grouped("date_trunc('DAY', coalesce(t, event_time))"): GROUPS,
    grouped("date_sub(event_time, CAST(v AS INT))"): GROUPS,
    grouped("from_utc_timestamp(event_time, '+01:00')"): GROUPS,
    grouped("session_window(event_time, CASE WHEN k = 'x' THEN '1 hour' ELSE '2 hours' END)"): GROUPS,
    # the day of the month is cut, the time of the day is not: a later time may become an earlier one
    grouped("event_time + INTERVAL 1 MONTH"): GROUPS,
    grouped("event_time - INTERVAL 1 YEAR"): GROUPS,
    grouped("event_time + make_interval(0, 1)"): GROUPS,
    grouped("timestampadd(MONTH, 1, event_time)"): GROUPS,
    # what is text in between may be read in any order
    grouped("to_date(CAST(event_time AS STRING), 'yyyy-dd-MM HH:mm:ss')"): GROUPS,
    grouped("CAST(CAST(event_time AS DECIMAL(20, 0)) AS TIMESTAMP)"): GROUPS,
    grouped("ROLLUP (window(event_time, '1 day'), k)"): GROUPS,
    grouped("CUBE (event_time, k)"): GROUPS,
    grouped("GROUPING SETS ((date_trunc('DAY', event_time)), (k))"): GROUPS,
    "SELECT max(event_time) AS event_time, count(*) AS n FROM a": GROUPS,
    "SELECT window(m, '1 day').start AS event_time, count(*) AS n FROM "
    "(SELECT k, max(event_time) AS m FROM a GROUP BY k) GROUP BY window(m, '1 day')": GROUPS,
    "SELECT DISTINCT t AS event_time, k FROM a": DISTINCT,
    "SELECT event_time, sum(v) OVER (PARTITION BY k ORDER BY event_time, offset) AS total FROM a": OVER,
    "SELECT event_time, lag(v) OVER (ORDER BY event_time, offset) AS last FROM a": OVER,
    joined("a.k = b.k"): JOIN,
    joined("true", "CROSS").replace("ON true", ""): JOIN,
    joined("a.k = b.k AND b.event_time >= a.event_time"): JOIN,
    joined("b.event_time <= a.event_time + INTERVAL 1 DAY", "LEFT"): JOIN,
    joined("a.t BETWEEN b.event_time AND b.event_time + INTERVAL 1 DAY"): JOIN,
    joined("a.event_time = b.event_time OR a.k = b.k"): JOIN,
    joined("NOT a.event_time = b.event_time"): JOIN,
    joined("b.event_time BETWEEN a.event_time AND a.event_time + INTERVAL 1 MONTH"): JOIN,
    joined("CAST(a.event_time AS DATE) = CAST(b.event_time AS DATE)"): JOIN,
    joined("a.k = b.k", "LEFT", where="a.event_time = b.event_time"): JOIN,
    "SELECT event_time, k FROM a ORDER BY event_time, offset LIMIT 3": "LIMIT",
    "SELECT event_time, k FROM a ORDER BY k OFFSET 2": "OFFSET",
    "SELECT event_time, (SELECT max(v) FROM b) AS most FROM a": "a subquery",
    "SELECT event_time, k FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.k = a.k)": "a subquery",
    "SELECT event_time, k FROM a WHERE k IN (SELECT k FROM b)": "a subquery",
    "SELECT event_time, k FROM a EXCEPT SELECT event_time, k FROM b": "EXCEPT",
    "SELECT event_time, k FROM a INTERSECT SELECT event_time, k FROM b": "INTERSECT",
    "SELECT event_time, k FROM a UNION ALL SELECT TIMESTAMP '2020-01-01', 'x'": "UNION with constant rows",
}


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
    assert note.count(GROUPS) == 1
    assert note.count("LIMIT") == 1


def test_a_temporal_table_is_unbounded(transforms: SparkTransformEngine, tmp_path: Path) -> None:
    sql = joined("a.k = b.k AND a.event_time >= b.__valid_from AND a.event_time < b.__valid_to")
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
