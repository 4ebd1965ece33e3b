"""Queries for DataFusion without settings: steps, versions, and chains that the reference's engine wrote."""

from __future__ import annotations

import dataclasses
import datetime as dt
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.errors import OdfchainError, QueryError, TransformError
from odfchain.odf import events as ev
from odfchain.odf.engine_messages import RawQueryRequest, Watermark
from odfchain.odf.events import DatasetVocabulary
from odfchain.odf.sources import SqlQueryStep, TransformSql
from odfchain.odf.times import Timestamp
from odfchain.progress import SILENT
from odfchain.transform.datafusion_engine import DataFusionEngine
from odfchain.transform.engine_protocol import EngineServer
from odfchain.transform.engines import datafusion_version, same_results
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from tests.kit.contract_engine import ContractEngine, NamedContractEngine
from tests.kit.datafusion_steps import as_texts, request_of, table_of
from tests.kit.root_rows import MADE, START, add_root, append, records, schema_with
from tests.kit.support import FIXTURES, Notes, check_replay, configure, derivative, of_others

QUERIES = FIXTURES / "queries"
STEPS = yaml.safe_load((QUERIES / "datafusion_steps.yaml").read_text(encoding="utf-8"))
EXAMPLES = yaml.safe_load((QUERIES / "reference_examples.yaml").read_text(encoding="utf-8"))
SCHEMA = schema_with(pa.field("city", pa.string()), pa.field("n", pa.int64()))


def shown(case: dict[str, Any]) -> str:
    return f"{case['number']} {case['title']}"


def kinds(schema: pa.Schema, names: list[str]) -> dict[str, str]:
    return {n: f"{schema.field(n).type}{'' if schema.field(n).nullable else ' not null'}" for n in names}


@pytest.mark.parametrize("case", STEPS, ids=shown)
def test_steps(case: dict[str, Any], tmp_path: Path) -> None:
    request = request_of(case["queries"], case["inputs"], tmp_path, DatasetVocabulary())
    expected = case["expectation"]
    if isinstance(expected, str):
        with pytest.raises(QueryError) as found:
            DataFusionEngine().execute(request, schema=None, progress=SILENT)
        assert expected in str(found.value)
        return
    done = DataFusionEngine().execute(request, schema=None, progress=SILENT)
    made = pq.read_table(request.new_data_path)
    names = [name for name in made.schema.names if name not in ("offset", "system_time")]
    assert {"columns": kinds(made.schema, names), "rows": as_texts(made, names)} == expected
    assert made["offset"].to_pylist() == list(range(7, 7 + len(made)))
    assert (done.offset_interval is None) == (not expected["rows"])


@pytest.mark.parametrize("case", EXAMPLES, ids=shown)
def test_the_reference_s_examples(case: dict[str, Any], tmp_path: Path) -> None:
    if case["engine"] != "datafusion":
        workspace = Workspace.init(tmp_path / "workspace")
        add_root(workspace, "cities", SCHEMA)
        with workspace, pytest.raises(TransformError) as found:
            workspace.add(derivative("SELECT 1", engine=case["engine"]))
        assert case["expectation"] in str(found.value)
        return
    engine, output = DataFusionEngine(), tmp_path / "data"
    if case["kind"] == "transform":
        vocabulary = DatasetVocabulary(event_time_column=case["event_time"])
        request = request_of(case["queries"], case["inputs"], tmp_path, vocabulary)
        engine.execute(request, schema=None, progress=SILENT)
    else:
        pq.write_table(table_of(case["inputs"]["input"]), tmp_path / "input")
        queries = tuple(SqlQueryStep(alias=q.get("alias"), query=q["query"]) for q in case["queries"])
        transform = TransformSql(engine="datafusion", queries=queries)
        paths = (str(tmp_path / "input"),)
        raw = RawQueryRequest(input_data_paths=paths, transform=transform, output_data_path=str(output))
        engine.query(raw, progress=SILENT)
    made, expected = pq.read_table(output), case["expectation"]
    names = made.schema.names[3 if case["kind"] == "transform" else 0 :]
    assert {name: str(made.schema.field(name).type) for name in names} == expected["columns"]
    assert as_texts(made, names) == expected["rows"]


def test_the_examples_are_listed_in_the_manual() -> None:
    page = (FIXTURES.parent / "docs" / "engines.md").read_text(encoding="utf-8")
    for case in EXAMPLES:
        what = "runs" if case["engine"] == "datafusion" else "refused: no engine here"
        assert f"| {case['title']} | {case['kind']} | {case['engine']} | {what} |" in page


def test_the_watermark_is_the_least_of_the_inputs(tmp_path: Path) -> None:
    rows = {"event_time": ["timestamp", "2020-01-01 00:00:00Z"]}
    query, inputs = [{"query": "SELECT event_time FROM a"}], {"a": rows, "b": rows}

    def watermark(**marks: list[int]) -> Timestamp | None:
        given = {
            name: [Watermark(system_time=MADE, event_time=Timestamp(each)) for each in found]
            for name, found in marks.items()
        }
        request = request_of(query, inputs, tmp_path, DatasetVocabulary(), given)
        Path(request.new_data_path).unlink(missing_ok=True)
        return DataFusionEngine().execute(request, schema=None, progress=SILENT).watermark

    assert watermark(a=[9_000_000, 3_000_000], b=[5_000_000]) == Timestamp(5_000_000)
    assert watermark(a=[1]) is None


def test_rows_that_are_missing_are_no_result(tmp_path: Path) -> None:
    inputs = {"a": {"event_time": ["timestamp", "2020-01-01 00:00:00Z", "2020-01-02 00:00:00Z"]}}
    request = request_of([{"query": "SELECT event_time FROM a"}], inputs, tmp_path, DatasetVocabulary())
    (given,) = request.query_inputs
    short = dataclasses.replace(given, data_paths=given.data_paths[:1])
    with pytest.raises(OdfchainError, match="1 of the 2 records"):
        DataFusionEngine().execute(
            dataclasses.replace(request, query_inputs=(short,)), schema=None, progress=SILENT
        )


def test_versions() -> None:
    for recorded, running, same in [
        ("datafusion_55.0.0", "datafusion_55.0.3", True), ("datafusion_55.0.0", "datafusion_55.1.0", False),
        ("datafusion_55.0.0", "odfchain_3-spark_4.3.0", False), ("datafusion_x", "datafusion_55.0.0", False),
        (None, "datafusion_55.0.0", True),
    ]:  # fmt: skip
        assert same_results(recorded, running) is same, (recorded, running)
    assert same_results("datafusion_54.0.0", "datafusion_55.0.0", ["datafusion_54.0.0"])


# --- datasets ----------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path) -> Workspace:
    return Workspace.init(tmp_path / "workspace")


def add_rows(root: DatasetFiles, *rows: tuple[str, int]) -> None:
    """A slice, and a watermark that is later by an hour for each record so far."""
    start = DatasetState.read(root.chain).record_count
    times = [START + dt.timedelta(minutes=start + i) for i in range(len(rows))]
    cities, numbers = zip(*rows, strict=True)
    table = records(SCHEMA, start, [0] * len(rows), times, cities, numbers)
    append(root, table, Timestamp(MADE.epoch_ns + start * 3_600_000_000_000))


UNION = "SELECT event_time, city, n FROM cities UNION ALL SELECT event_time, city, -n AS n FROM towns"


def two_roots(workspace: Workspace) -> tuple[DatasetFiles, DatasetFiles]:
    return add_root(workspace, "cities", SCHEMA), add_root(workspace, "towns", SCHEMA)


def recorded(workspace: Workspace, engine: ContractEngine, query: str = UNION) -> Dataset:
    """A chain by that engine: both inputs, one that is idle, and a step without rows."""
    cities, towns = two_roots(workspace)
    with EngineServer(engine, port=0) as server:
        configure(workspace.path, transform={"engines": {"datafusion": server.address}})
        inputs = "[{datasetRef: cities}, {datasetRef: towns}]"
        made = workspace.add(derivative(query, inputs=inputs, engine="datafusion"))[0]
        add_rows(cities, ("Lviv", 1), ("Kyiv", 2))
        add_rows(towns, ("Bar", 3))
        made.pull()
        add_rows(cities, ("Odesa", 4))
        add_rows(cities, ("Rivne", 5), ("Lutsk", 6))
        made.pull()
        add_rows(towns, ("Uman", 7))
        made.pull()
    configure(workspace.path)
    return made


def cities_of(dataset: Dataset) -> list[str]:
    return [row["city"] for row in dataset.scan().to_arrow().to_pylist()]


def test_a_chain_of_the_reference_s_engine_is_replayed_as_equal(here: Workspace) -> None:
    made = recorded(here, ContractEngine())
    schema = DatasetState.read(made._files.chain).schema
    assert schema is not None
    assert [f.value_type.KIND for f in schema.fields[:2]] == ["Int64", "Int32"]
    assert cities_of(made) == ["Lviv", "Kyiv", "Bar", "Odesa", "Rivne", "Lutsk", "Uman"]
    check_replay(made)


CHAINS: dict[str, Any] = yaml.safe_load((FIXTURES / "chains" / "datafusion-contract.yaml").read_text())


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """Chains that were recorded once by an engine of the same contract."""
    folder = tmp_path_factory.mktemp("archived")
    with zipfile.ZipFile(FIXTURES / "chains" / "datafusion-contract.zip") as archive:
        archive.extractall(folder)
    return Workspace.open(folder)


@pytest.mark.parametrize("name", CHAINS)
def test_a_recorded_chain_is_replayed_as_equal(archived: Workspace, name: str) -> None:
    made, expected = archived[name], CHAINS[name]
    transform = DatasetState.read(made._files.chain).transform
    assert transform is not None
    assert transform.transform.version is None
    rows = made.scan().to_arrow().select(expected["columns"]).to_pylist()
    plain = [[v if isinstance(v, int | str | None) else str(v) for v in row.values()] for row in rows]
    assert plain == expected["rows"]
    check_replay(made)


def test_what_it_made_of_other_rows_is_found(here: Workspace) -> None:
    def change(rows: pa.Table) -> pa.Table:
        return rows.set_column(2, "n", pa.array([0] * len(rows), pa.int64()))

    report = recorded(here, ContractEngine(change)).verify(replay=True)
    assert [fault.check for fault in report.faults] == [15] * 3
    assert "DataNotReproducible" in report.faults[0].message


def test_a_chain_of_another_version_is_replayed_if_the_settings_say_so(here: Workspace) -> None:
    made = recorded(here, NamedContractEngine())
    report = made.verify(replay=True)
    assert report.verdict == "incomplete"
    assert "datafusion_54.1.0" in str([left.message for left in report.unchecked])
    configure(here.path, transform={"compatibleVersions": ["datafusion_54.1.0"]})
    check_replay(made)


@pytest.mark.parametrize("isolation", ["strangers", "always", "never"])
def test_without_settings_and_without_java(here: Workspace, isolation: str) -> None:
    configure(here.path, transform={"isolation": isolation})
    cities, _ = two_roots(here)
    made = here.add(derivative("SELECT event_time, upper(city) AS c FROM cities", engine="datafusion"))[0]
    add_rows(cities, ("Lviv", 1), ("Kyiv", 2))
    assert made.pull().status == "updated"
    assert made.pull().status == "up to date"
    (event,) = [b.block.event for b in made._files.chain.walk() if isinstance(b.block.event, ev.SetTransform)]
    assert event.transform.version == datafusion_version()
    schema = DatasetState.read(made._files.chain).schema
    assert schema is not None
    assert schema.fields[0].value_type.KIND == "UInt64"
    check_replay(made)
    assert here._engines.spark is None


def test_times_that_are_cut_are_said(here: Workspace) -> None:
    cities, _ = two_roots(here)
    query = "SELECT event_time, to_timestamp_nanos(1700000000000000007) AS t FROM cities"
    made, notes = here.add(derivative(query, engine="datafusion"))[0], Notes()
    add_rows(cities, ("Lviv", 1), ("Kyiv", 2))
    made.pull(progress=notes)
    assert "`t`: 2 times are finer than the column keeps; what is finer was cut off" in notes.texts


def test_a_definition_is_checked_before_it_is_recorded(here: Workspace) -> None:
    two_roots(here)
    for query, message in [
        ("SELECT event_time, cty FROM cities", "there is no column cty"),
        ("SELECT city FROM cities", "no column `event_time`"),
        ("SELECT now() AS event_time FROM cities", "now is not allowed"),
        ("SELECT event_time FROM cities, '/etc/passwd'", "there is no table"),
    ]:
        with pytest.raises(QueryError, match=message):
            here.add(derivative(query, engine="datafusion"))
    assert here._engines.spark is None
    assert "cities, towns" in repr(here)


def test_a_recorded_query_that_is_not_allowed_here_is_no_fault(here: Workspace) -> None:
    made = recorded(here, ContractEngine(), f"SELECT * FROM ({UNION}) WHERE now() > event_time")
    report = made.verify(replay=True)
    assert report.faults == []
    assert report.verdict == "incomplete"


def test_the_queries_of_others_run_in_a_sandbox(here: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    cities, _ = two_roots(here)
    add_rows(cities, ("Lviv", 1))
    made = of_others(here, derivative("SELECT event_time FROM cities", engine="datafusion"))
    assert made.pull().status == "updated"
    configure(here.path, transform={"isolation": "always"})
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))  # where bubblewrap is not
    with pytest.raises(OdfchainError, match="bubblewrap is not installed"):
        made.verify(replay=True)


def test_the_service_needs_no_java(tmp_path: Path) -> None:
    program = (
        "import sys, odfchain.transform.datafusion_engine;"
        "sys.exit(str({'pyspark', 'py4j'} & set(sys.modules) or '') or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
