"""Real files of published sources: what is recorded of them, and that it verifies."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pytest

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.odf.times import Timestamp
from odfchain.spark.session import SparkEngine
from tests.kit.support import FIXTURES, ROOT, nycflights, unchanged

FOLDER = FIXTURES / "data" / "airports"
RELEASES = sorted(FOLDER.glob("*.csv"))
NUMBERS = ("elevation", "lat", "lon")
assert len(RELEASES) == 4


def release(path: Path) -> dict[str, dict[str, Any]]:
    """A release as published: the row of each IATA code."""
    with path.open(encoding="utf-8", newline="") as stream:
        rows = [{k: v or None for k, v in row.items()} for row in csv.DictReader(stream)]
    for row in rows:
        row.update({name: float(row[name]) for name in NUMBERS if row[name] is not None})
    found = {row["iata"]: row for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, engine: SparkEngine) -> Dataset:
    workspace = Workspace.init(tmp_path_factory.mktemp("airports"))
    workspace._engines.spark = engine
    (dataset,) = workspace.add(ROOT / "fixtures" / "manifests" / "pushed" / "airports.yaml")
    for path in RELEASES:
        dataset.ingest([path], event_time=Timestamp.parse(f"{path.stem}T00:00:00Z"))
    return dataset


def projected(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The state that a changelog describes (specification "Retractions and corrections"), by its own words."""
    state: dict[str, dict[str, Any]] = {}
    for row in rows:
        data = {k: v for k, v in row.items() if k not in ("offset", "op", "system_time", "event_time")}
        key = data["iata"]
        match row["op"]:
            case 0:
                assert key not in state, f"{key} is appended twice"
                state[key] = data
            case 1 | 2:
                assert state.pop(key) == data, f"what is taken back of {key} is what was recorded"
            case 3:
                assert key not in state
                state[key] = data
    return state


def slices(dataset: Dataset) -> Iterator[list[dict[str, Any]]]:
    rows = dataset.scan().to_arrow().to_pylist()
    for ref in dataset.summary.slices():
        interval = ref.slice.offset_interval
        yield rows[interval.start : interval.end + 1]


def test_every_release_is_rebuilt_exactly_from_the_log(recorded: Dataset) -> None:
    log: list[dict[str, Any]] = []
    for path, rows in zip(RELEASES, slices(recorded), strict=True):
        log += rows
        assert projected(log) == release(path), path.stem


def test_nothing_is_recorded_that_did_not_happen(recorded: Dataset) -> None:
    """Additions, removals and corrections are those that comparing two releases gives; SOURCE.md lists them."""
    text = (FOLDER / "SOURCE.md").read_text(encoding="utf-8")
    count = r" ?([\d,]*) ?\|"
    table = re.findall(rf"^\| `(.*?)\.csv` \| \S+ \|{count * 4}$", text, re.MULTILINE)
    assert [row[0] for row in table] == [path.stem for path in RELEASES]
    before: dict[str, dict[str, Any]] = {}
    for path, rows, listed in zip(RELEASES, slices(recorded), table, strict=True):
        now = release(path)
        changed = sum(before[key] != now[key] for key in before.keys() & now.keys())
        counts = [len(now.keys() - before.keys()), len(before.keys() - now.keys()), changed]
        ops = [sum(row["op"] == op for row in rows) for op in range(4)]
        assert ops == [counts[0], counts[1], counts[2], counts[2]]
        said = [int(cell.replace(",", "")) for cell in listed[1:] if cell]
        assert said == [len(now), *(counts if before else [])]
        before = now


def test_corrections_are_pairs(recorded: Dataset) -> None:
    for rows in slices(recorded):
        assert [r["iata"] for r in rows] == sorted((r["iata"] for r in rows), key=str.encode)
        for before, after in zip(rows, [*rows[1:], {"op": None}], strict=True):
            assert (before["op"] == 2) == (after["op"] == 3)
            if before["op"] == 2:
                assert before["iata"] == after["iata"]


def test_it_verifies(recorded: Dataset) -> None:
    report = recorded.verify()
    assert (report.ok, report.slices, report.records) == (True, 4, 25_272)


def test_the_last_release_again_changes_nothing(recorded: Dataset) -> None:
    with unchanged(recorded.path):
        assert recorded.ingest([RELEASES[-1]]).up_to_date


@pytest.mark.parametrize("engine_name", ["datafusion", "spark"])
def test_queries_count_what_is_in_force(recorded: Dataset, engine_name: str) -> None:
    """Case 9 of the queries: after each release, and at event times."""
    expected = json.loads((FIXTURES / "query" / "cases.json").read_bytes())["airports"]
    name = recorded.alias
    blocks = [ref.sequence_number for ref in recorded.summary.slices()]
    asked = [f"state('{name}@{block}')" for block in blocks]
    asked += [f"state('{name}@{block}', NULL, '')" for block in blocks]
    asked += [f"state('{name}', '{time}')" for time in expected["at_event_times"]]
    asked += [f"state('{name}') where event_time <= '{t}T00:00:00Z'" for t in expected["records_not_later"]]
    counts = " union all ".join(f"select {i} as i, count(*) as n from {each}" for i, each in enumerate(asked))
    found = recorded._workspace.sql(f"{counts} order by i", engine=engine_name).to_arrow()
    assert found["n"].to_pylist() == [
        *expected["after_slices"], *expected["after_slices"], *expected["at_event_times"].values(),
        *expected["records_not_later"].values(),
    ]  # fmt: skip


def test_the_five_questions_of_the_readme(recorded: Dataset) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```sql\n(.*?)```", text, re.DOTALL)
    questions = [question for question in block.split(";") if question.strip()]
    answers = [recorded._workspace.sql(question).to_arrow().to_pylist() for question in questions]
    countries, first, then, renamed, one = answers
    assert [(row["country"], row["airports"]) for row in countries] == [
        ("US", 1952), ("AU", 521), ("CA", 414), ("BR", 330), ("CN", 256),
    ]  # fmt: skip
    assert (first, then) == ([{"airports": 6565}], [{"airports": 7744}])
    assert renamed[1] == {"icao": "BGGH", "was": "Godthaab / Nuuk Airport", "now": "Nuuk Airport"}
    assert [row["op"] for row in one] == [0, 2, 3]


def test_the_notebook_runs(engine: SparkEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cells, in the folder where it lies, with no workspace; what it prints is what it shows."""
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setattr("odfchain.spark.session.SparkEngine", lambda *_, **__: engine)
    (tmp_path / "fixtures").symlink_to(ROOT / "fixtures")
    (tmp_path / "docs").mkdir()
    monkeypatch.chdir(tmp_path / "docs")
    cells = json.loads((ROOT / "docs" / "airports.ipynb").read_bytes())["cells"]
    names: dict[str, Any] = {}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there is no screen to show a figure on
        for cell in cells:
            if cell["cell_type"] == "code":
                exec(compile("".join(cell["source"]), cell["id"], "exec"), names)  # noqa: S102 - ours
    assert len(names["where"]) == names["counts"][-1] == 7884
    shown = [o["text"] for cell in cells for o in cell.get("outputs", []) if o["output_type"] == "stream"]
    assert "recomputed: the same 1 row" in printed.getvalue()
    assert printed.getvalue().split() == "".join(part for text in shown for part in text).split()


def test_case_44_profiles_of_real_releases(recorded: Dataset) -> None:
    case = json.loads((FIXTURES / "snapshots" / "profiles.json").read_text())["airports"]
    profiles = {number: recorded.at(int(number)).profile() for number in case["rows"]}
    assert {number: profile.num_rows for number, profile in profiles.items()} == case["rows"]
    columns = profiles[str(case["block"])].column_stats
    elevation, country = columns["elevation"], columns["country"]
    found = {name: elevation[name] for name in ("mean", "num_unique")}
    assert found | {"p99": elevation["percentiles"]["p99"]} == case["elevation"]
    assert {"num_unique": country["num_unique"], "US": country["top_values"]["US"]} == case["country"]
    assert columns["city"]["null_count"] == case["city"]["null_count"]


KEY = ["time_hour", "carrier", "flight"]


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("flights")
    with zipfile.ZipFile(nycflights() / "flights.csv.zip") as archive:
        return Path(archive.extract("flights.csv", folder))


@pytest.fixture(scope="module")
def recorded_flights(tmp_path_factory: pytest.TempPathFactory, engine: SparkEngine, flights: Path) -> Dataset:
    workspace = Workspace.init(tmp_path_factory.mktemp("ledger"))
    workspace._engines.spark = engine
    (dataset,) = workspace.add(ROOT / "fixtures" / "manifests" / "pushed" / "flights.yaml")
    outcome = dataset.ingest([flights])
    assert [item.operations for item in outcome.inputs] == [{"+A": 336_776}]
    return dataset


def test_the_second_time_brings_no_new_rows(recorded_flights: Dataset, flights: Path) -> None:
    with unchanged(recorded_flights.path):
        outcome = recorded_flights.ingest([flights])
    assert (outcome.up_to_date, outcome.inputs[0].input_rows, outcome.inputs[0].rows) == (True, 336_776, 0)


def test_the_records_are_those_of_the_file(recorded_flights: Dataset, flights: Path) -> None:
    """Read by another reader, and compared column by column in the order of the keys."""
    table = recorded_flights.scan().to_arrow()
    data = table.drop_columns(["offset", "op", "system_time"])
    types = {field.name: field.type for field in data.schema}
    options = pcsv.ConvertOptions(
        column_types=types, null_values=["NA"], strings_can_be_null=True, quoted_strings_can_be_null=False
    )
    source = pcsv.read_csv(flights, convert_options=options).select(data.schema.names)
    order = [(name, "ascending") for name in KEY]
    expected = source.sort_by(order).cast(data.schema)
    assert data.sort_by(order).equals(expected)
    assert table["offset"].to_pylist() == list(range(336_776))
    assert pc.all(pc.equal(table["op"], 0)).as_py()
    times = table["time_hour"].cast(pa.int64()).to_numpy()
    assert (times[1:] >= times[:-1]).all(), "in the order of event time"


def test_flights_verify(recorded_flights: Dataset) -> None:
    assert recorded_flights.verify().ok
