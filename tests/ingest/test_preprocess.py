"""Queries that preprocess an input on DataFusion: as it says them, in order, refused before anything is recorded."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import math
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import datafusion
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odfchain.api.dataset import Dataset
from odfchain.api.executing import engines_of
from odfchain.api.settings import edit, setting
from odfchain.api.workspace import Workspace
from odfchain.errors import EngineError, OdfchainError, QueryError
from odfchain.odf.engine_messages import RawQueryRequest
from odfchain.progress import Progress
from odfchain.spark import executor_files
from odfchain.spark.session import SparkEngine
from odfchain.transform.datafusion_engine import DataFusionEngine
from odfchain.transform.engine_protocol import EngineServer
from tests.kit import shared_store
from tests.kit.small_s3 import SmallS3
from tests.kit.support import Notes, fixture, unchanged

CASES = {case["number"]: case for case in fixture("ingest/preprocess.yaml")["cases"]}
REFUSED = fixture("ingest/preprocess.yaml")["refused"]


def added(
    workspace: Workspace, case: dict[str, Any], name: str = "made", engine: str = "datafusion", **options: Any
) -> Dataset:
    steps = {key: case[key] for key in ("query", "queries", "version") if key in case}
    source = {
        "kind": "AddPushSource",
        "sourceName": "default",
        "read": case["read"],
        "preprocess": {"kind": "Sql", "engine": engine, **steps},
        "merge": case["merge"],
    }
    time = {"kind": "SetVocab", "eventTimeColumn": case.get("time", "event_time")}
    content = {"name": name, "kind": "Root", "metadata": [source, time]}
    manifest = json.dumps({"kind": "DatasetSnapshot", "version": 1, "content": content})
    return workspace.add(manifest, **options)[0]


def shown(value: Any) -> Any:
    """A value as a fixture writes it."""
    match value:
        case dt.datetime():
            return value.astimezone(dt.UTC).isoformat().replace("+00:00", "Z")
        case dt.date() | Decimal():
            return str(value)
        case float() if math.isnan(value):
            return "nan"
    return value


def recorded(dataset: Dataset) -> list[dict[str, Any]]:
    """The rows without what is given by the ledger: the event time, too, where it is the time of the run."""
    given = {"offset", "op", "system_time"}
    rows = dataset.scan().to_arrow().to_pylist()
    if all(row.get("event_time") == row["system_time"] for row in rows):
        given.add("event_time")
    return [{name: shown(value) for name, value in row.items() if name not in given} for row in rows]


@pytest.mark.parametrize("number", CASES, ids=lambda n: f"{n} {CASES[n]['title']}")
def test_case(workspace: Workspace, tmp_path: Path, number: int) -> None:
    case, path = CASES[number], tmp_path / "in.txt"
    path.write_text(case["input"], encoding="utf-8")
    if case.get("seen"):
        with pytest.raises(QueryError, match=case["fault"]):
            added(workspace, case)
    dataset = added(workspace, case, check=not case.get("seen"))
    if "fault" in case:
        with unchanged(dataset.path), pytest.raises(OdfchainError, match=case["fault"]) as caught:
            dataset.ingest(path)
        assert case.get("excerpt", []) == [line.strip() for line in caught.value.excerpt[:1]]
        return
    dataset.ingest(path)
    schema, found = dataset.summary.schema, recorded(dataset)
    assert schema is not None
    assert found == [{name: shown(value) for name, value in row.items()} for row in case["rows"]]
    kinds = {f.name: f.value_type.KIND for f in schema.fields}
    assert kinds | case.get("types", {}) == kinds
    assert dataset.verify().ok


# --- types, beside DataFusion itself ---------------------------------------------------------------

UTC = "UTC"
WIDE = pa.table({
    "event_time": pa.array([1_600_000_000_123] * 3, pa.timestamp("ms", UTC)),
    "fine": pa.array([1_600_000_000_123_456, None, -1], pa.timestamp("us", UTC)),
    "day": pa.array([18_000, None, -1], pa.date32()),
    "huge": pa.array([2**64 - 1, 0, None], pa.uint64()),
    "small": pa.array([-128, None, 127], pa.int8()),
    "exact": pa.array([Decimal("12345678901234567890.0000000001"), None, Decimal(0)], pa.decimal128(38, 10)),
    "x": pa.array([math.nan, None, -0.0], pa.float64()),
    "y": pa.array([1.5, math.inf, None], pa.float32()),
    "yes": pa.array([True, None, False]),
    "raw": pa.array([b"\x00\xff", None, b""]),
    "words": pa.array(["", None, "zażółć"]),
    "list": pa.array([[1, None, 65_535], None, []], pa.list_(pa.uint16())),
    "pair": pa.array([{"k": "a", "v": 1}, None, {"k": None, "v": 2}], pa.struct([("k", pa.string()), ("v", pa.int64())])),
})  # fmt: skip
QUERIES = [
    "select * from input",
    "select event_time, huge / 2 as half, exact * 2 as twice, x * 0 as nothing, fine from input",
    "select event_time, list[1] as first, pair['k'] as k, array_length(list) as n, concat(words, '!') as said from input",
    "select max(event_time) as event_time, sum(small) as total, count(*) as n, avg(y) as mean from input",
    "select event_time, coalesce(words, 'none') as words, date_trunc('hour', fine) as hour, day from input where small is null or huge > 0 order by huge nulls first",
    "select event_time, to_timestamp('2020-03-01T10:00:00.123456Z') as made, cast(day as timestamp) as midnight from input",
    "select event_time, 1 as a from input union all select event_time, 2 as a from input",
]


@pytest.mark.parametrize("query", QUERIES)
def test_types_and_values_are_those_of_datafusion(workspace: Workspace, tmp_path: Path, query: str) -> None:
    path = tmp_path / "in.parquet"
    pq.write_table(WIDE, path)
    case = {"read": {"kind": "Parquet"}, "merge": {"kind": "Append"}, "query": query}
    dataset = added(workspace, case)
    dataset.ingest(path)
    plain = datafusion.SessionConfig().with_target_partitions(1)
    context = datafusion.SessionContext(
        plain.set("datafusion.sql_parser.enable_ident_normalization", "false")
    )
    context.register_parquet("input", str(path))
    frame = context.sql(query)
    # part by part: a union's parts race where they are read at once
    parts = [batch.to_pyarrow() for part in frame.execute_stream_partitioned() for batch in part]
    expected = pa.Table.from_batches(parts)
    found = dataset.scan().to_arrow()
    for name in expected.column_names:
        values = expected[name]
        if pa.types.is_timestamp(values.type):
            values = values.cast(pa.timestamp(found[name].type.unit, UTC))
        assert repr(found[name].to_pylist()) == repr(values.to_pylist()), name
        assert kind_at(found, name) == kind_at(expected, name)


def kind_at(table: pa.Table, name: str) -> str:
    """The type of a column; texts of every form are one, and so are times."""
    kind = str(table.schema.field(name).type)
    return "time" if kind.startswith("timestamp") else kind.replace("_view", "").replace("item:", "element:")


def test_rows_stay_in_order(workspace: Workspace, tmp_path: Path) -> None:
    count, path = 300_000, tmp_path / "in.csv"
    path.write_text("n\n" + "".join(f"{n * 7_919 % count}\n" for n in range(count)))
    read = {"kind": "Csv", "header": True, "schema": ["n BIGINT"]}
    dataset = added(
        workspace, {"read": read, "merge": {"kind": "Append"}, "query": "select n from input where n % 3 > 0"}
    )
    dataset.ingest(path)
    wanted = [n for n in (n * 7_919 % count for n in range(count)) if n % 3]
    assert dataset.scan(["n"]).to_arrow()["n"].to_pylist() == wanted


# --- the engine ------------------------------------------------------------------------------------

CITIES = CASES[11]


class Phases(Notes):
    """Keeps what is being done."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[str] = []

    def phase(self, name: str, total: int | None = None) -> None:
        self.begun.append(name)


class Killing(Phases):
    """Kills the engine that is about to be asked, known by its socket."""

    def phase(self, name: str, total: int | None = None) -> None:
        socket = name.partition("waiting for the engine at unix:")[2].encode()
        for command in Path("/proc").glob("[0-9]*/cmdline") if socket else ():
            with contextlib.suppress(OSError):
                if socket in command.read_bytes().split(b"\0"):
                    os.kill(int(command.parent.name), signal.SIGKILL)


def test_all_files_of_a_run_have_one_process(workspace: Workspace, tmp_path: Path) -> None:
    dataset, phases = added(workspace, CITIES, check=False), Phases()
    paths = [tmp_path / f"{number}.csv" for number in range(3)]
    for path in paths:
        path.write_text(CITIES["input"])
    outcome = dataset.ingest(paths, again=True, progress=phases)
    assert (outcome.blocks, len(recorded(dataset))) == (4, 6)
    assert sum(name.startswith("Starting DataFusion") for name in phases.begun) == 1
    assert [path.name for path in (dataset.path / "staging").iterdir() if path.name != ".lock"] == []


def test_two_ingests_at_once(workspace: Workspace, tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text(CITIES["input"])
    datasets = [added(workspace, CITIES, name=name, check=False) for name in ("one", "other")]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda dataset: dataset.ingest(path), datasets))
    assert [recorded(dataset) for dataset in datasets] == [CITIES["rows"]] * 2


def test_a_killed_engine_leaves_nothing_behind(workspace: Workspace, tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text(CITIES["input"])
    dataset = added(workspace, CITIES, check=False)
    with unchanged(dataset.path), pytest.raises(EngineError, match=r"went away|no engine answers"):
        dataset.ingest(path, progress=Killing())
    dataset.ingest(path)
    assert recorded(dataset) == CITIES["rows"]


def test_queries_of_strangers_run_in_a_sandbox_or_not_at_all(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "in.csv"
    path.write_text(CITIES["input"])
    own, other = (added(workspace, CITIES, name=name, check=False) for name in ("own", "other"))
    workspace._files._key_path(other.id).unlink()
    phases = Phases()
    other.ingest(path, progress=phases)
    assert "Starting DataFusion in a sandbox" in phases.begun
    assert recorded(other) == CITIES["rows"]
    monkeypatch.setenv("PATH", str(tmp_path))
    own.ingest(path, progress=phases)
    assert "Starting DataFusion" in phases.begun, "a plain process"
    assert recorded(own) == CITIES["rows"]
    with unchanged(other.path), pytest.raises(EngineError, match="bubblewrap is not installed"):
        other.ingest(path, again=True)


class Served(DataFusionEngine):
    """Keeps what it is asked for, and writes no file where there are no rows."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[RawQueryRequest] = []

    def query(self, request: RawQueryRequest, *, progress: Progress) -> int:
        self.requests.append(request)
        count = super().query(request, progress=progress)
        if not count:
            Path(request.output_data_path).unlink()
        return count


def test_an_engine_at_an_address_goes_before_ours(workspace: Workspace, tmp_path: Path) -> None:
    full, empty, engine = tmp_path / "in.csv", tmp_path / "empty.csv", Served()
    full.write_text(CITIES["input"])
    empty.write_text("city,population\nD,1\n")
    dataset = added(workspace, CITIES | {"version": "43.0.0"}, check=False)
    with EngineServer(engine, port=0) as server:
        edit(workspace.path, setting("transform.engines.datafusion"), lambda _: server.address)
        again = Workspace.open(workspace.path)
        again._engines.spark = workspace._engines.spark
        again["made"].ingest([full, empty])
    assert recorded(dataset) == CITIES["rows"]
    assert [request.transform.version for request in engine.requests] == [None, None], "an ingest has none"


@pytest.mark.parametrize("number", [11, 12, 14])
def test_executors_that_see_no_folder_of_the_driver(
    engine: SparkEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    case, path = CASES[number], tmp_path / "in.csv"
    path.write_text(case["input"])
    shared_store.environment(monkeypatch, tmp_path / "home")
    monkeypatch.setattr(executor_files, "CARRIED_BYTES", -1)
    with SmallS3() as store, shared_store.credentials_of_workers(engine):
        dataset = added(shared_store.wide_machine(store, tmp_path / "wide", engine), case)
        dataset.ingest(path)
        assert recorded(dataset) == case["rows"]


@pytest.mark.parametrize(("query", "message"), REFUSED)
def test_what_no_query_may_do(tmp_path: Path, query: str, message: str) -> None:
    workspace = Workspace.init(tmp_path / "here")
    case = {"read": {"kind": "NdJson"}, "merge": {"kind": "Append"}, "query": query}
    with pytest.raises(QueryError, match=message):
        added(workspace, case)
    assert len(list(workspace)) == 0
    assert engines_of(workspace).spark is None, "no JVM was started"


def test_a_query_without_declared_columns_is_checked_by_the_first_file(
    workspace: Workspace, tmp_path: Path
) -> None:
    path = tmp_path / "in.json"
    path.write_text('{"a": 1}')
    dataset = added(
        workspace, {"read": {"kind": "NdJson"}, "merge": {"kind": "Append"}, "query": "select b from input"}
    )
    with unchanged(dataset.path), pytest.raises(QueryError, match="there is no column b"):
        dataset.ingest(path)


def test_nanoseconds_that_are_cut_are_said(workspace: Workspace, tmp_path: Path) -> None:
    path, notes = tmp_path / "in.csv", Notes()
    path.write_text(CITIES["input"])
    query = "select city, to_timestamp_nanos(1700000000000000007) as t from input"
    dataset = added(workspace, {"read": CITIES["read"], "merge": {"kind": "Append"}, "query": query})
    dataset.ingest(path, progress=notes)
    assert any(text.startswith("`t`: 3 times are finer") for text in notes.texts)


@pytest.mark.parametrize("dialect", ["flink", "risingwave"])
def test_other_dialects_are_translated_with_a_note(
    workspace: Workspace, tmp_path: Path, dialect: str
) -> None:
    path, notes = tmp_path / "in.csv", Notes()
    path.write_text(CITIES["input"])
    case = {"read": CITIES["read"], "merge": {"kind": "Append"}, "query": "select city from input"}
    dataset = added(workspace, case, engine=dialect)
    dataset.ingest(path, progress=notes)
    assert [row["city"] for row in recorded(dataset)] == list("ABC")
    assert any(f"the {dialect} query is translated" in text for text in notes.texts)
