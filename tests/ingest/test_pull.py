"""Pulling: every byte of a source once, whatever happens in between."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.errors import (
    BadInputError,
    IngestError,
    OdfchainError,
    QueryError,
    SourceNotFoundError,
    UsageError,
)
from odfchain.ingest.ingesting import PullStatus
from odfchain.ingest.polling import CONTENT_HASH
from odfchain.odf import events as ev
from odfchain.odf.manifests import read_snapshots
from odfchain.odf.times import Timestamp
from odfchain.workspace.commit import commit
from tests.kit.polled_sources import ABC, SNAPSHOT, at, file_url, polled, rows, touch
from tests.kit.pushed_files import BARE, push
from tests.kit.reader_harness import plain
from tests.kit.support import ROOT, Result, Run, conformance, derivative, manifest, unchanged

# --- one source, many pulls ------------------------------------------------------------------------


def test_a_file_is_ingested_once_and_again_when_it_changes(workspace: Workspace, tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    touch(path, ABC, 1_600_000_000)
    dataset = polled(workspace, file_url(path))
    first = dataset.pull()
    assert (first.status, first.blocks, first.rows) == (PullStatus.UPDATED.value, 2, 3)
    modified = "2020-09-13T12:26:40Z"
    state = ev.SourceState(source_name="default", kind="odf/last-modified", value=modified)
    assert dataset.summary.source_state == state
    with unchanged(dataset.path):
        again = dataset.pull()
    assert (again.status, again.blocks, again.head) == (PullStatus.UP_TO_DATE.value, 0, first.head)
    touch(path, "city,population\nD,4000\n", 1_600_000_100)
    assert dataset.pull().blocks == 1
    assert rows(dataset) == [[0, "A", 1000], [0, "B", 2000], [0, "C", 3000], [0, "D", 4000]]
    assert dataset.verify().ok


def test_the_three_rounds_of_a_snapshot(workspace: Workspace, tmp_path: Path) -> None:
    """flow.snapshot_3_rounds, preprocessing included"""
    (case,) = [c for c in conformance("polling_cases")["cases"] if c["id"] == "flow.snapshot_3_rounds"]
    path = tmp_path / "in.csv"
    touch(path, ABC, 1_600_000_000)
    steps = "{kind: Sql, engine: spark, queries: [{alias: step1, query: 'select city, population * 10 as population from input'}, {query: 'select city, population + 1 as population from step1'}]}"
    dataset = polled(
        workspace, file_url(path) + ", eventTime: {kind: FromSystemTime}", merge=SNAPSHOT, preprocess=steps
    )
    columns = ["offset", "op", "system_time", "event_time", "city", "population"]

    def shown(count: int) -> list[list[Any]]:
        return [[plain(v) for v in row] for row in rows(dataset, *columns)[-count:]]

    expect = case["expect"]
    dataset.pull(**at("2050-01-01T12:00:00Z"))
    assert shown(3) == expect["round1"]
    assert str(dataset.summary.watermark) == expect["watermark1"]
    touch(path, ABC.replace("3000", "4000"), 1_600_000_100)
    dataset.pull(**at("2050-02-01T12:00:00Z"))
    assert shown(2) == expect["round2"]
    assert str(dataset.summary.watermark) == expect["watermark2"]
    touch(path, path.read_text(), 1_600_000_200)
    last = dataset.pull(**at("2050-03-01T12:00:00Z"))
    assert (last.blocks, str(last.watermark)) == (1, expect["watermark2"])
    event: Any = dataset.summary.last_data
    assert (event.new_data, event.new_source_state.value) == (None, "2020-09-13T12:30:00Z")


def test_files_of_a_glob_are_one_transaction_each(workspace: Workspace, tmp_path: Path) -> None:
    folder = tmp_path / "days"
    folder.mkdir()
    fetch = f"kind: FilesGlob, path: '{folder}/data-*.csv', eventTime: {{kind: FromPath, pattern: 'data-(\\d+-\\d+-\\d+)\\.csv', timestampFormat: 'yyyy-MM-dd'}}"
    dataset = polled(workspace, fetch)
    with pytest.raises(SourceNotFoundError):
        dataset.pull()
    for day in ("2020-10-05", "2020-10-01", "2020-10-10"):
        (folder / f"data-{day}.csv").write_text(f"city,population\n{day},1\n")
    outcome = dataset.pull()
    assert (len(outcome.details.inputs), outcome.blocks) == (3, 4)
    assert [row[1] for row in rows(dataset)] == ["2020-10-01", "2020-10-05", "2020-10-10"]
    assert str(dataset.summary.watermark) == "2020-10-10T00:00:00Z"
    assert dataset.pull().status == PullStatus.UP_TO_DATE.value
    assert dataset.verify().ok


def test_forever_means_once(workspace: Workspace, tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    touch(path, ABC, 1_600_000_000)
    dataset = polled(workspace, file_url(path) + ", cache: {kind: Forever}")
    dataset.pull()
    path.unlink()
    assert dataset.pull().status == PullStatus.UP_TO_DATE.value, "the source is not even looked at"


def test_forever_and_a_url_with_variables(workspace: Workspace, run_cli: Run, tmp_path: Path) -> None:
    touch(tmp_path / "1.csv", ABC, 1_600_000_000)
    url = f"file://{tmp_path}/${{{{ env.DAY }}}}.csv"
    polled(workspace, f"kind: Url, url: '{url}'" + FOREVER)
    assert run_cli("-w", workspace.path, "pull", "cities", "-e", "DAY=1").code == 0
    second = run_cli("-w", workspace.path, "pull", "cities", "-e", "DAY=2")
    assert second.code == 0
    assert "recorded once and not asked for again (cache: Forever)" in second.err


def refetched(dataset: Dataset, **changes: Any) -> None:
    """The source is defined anew, with another fetch step."""
    source: Any = dataset.summary.polling_source
    moved = dataclasses.replace(source, fetch=dataclasses.replace(source.fetch, **changes))
    commit(dataset._files, dataset.summary, [moved], [], system_time=dataset.summary.next_system_time())


FOREVER = ", cache: {kind: Forever}"
BY_CHANGE = ", order: ByEventTime, eventTime: {kind: FromMetadata}"


def test_forever_is_not_about_the_set_of_files(workspace: Workspace, tmp_path: Path) -> None:
    dataset = polled(workspace, f"kind: FilesGlob, path: '{tmp_path}/*.csv'" + FOREVER)
    for name, value in {"1.csv": "1", "2.csv": "x", "3.csv": "3"}.items():
        (tmp_path / name).write_text(f"city,population\nA,{value}\n")
    with pytest.raises(BadInputError, match=r"2\.csv: row 1"):
        dataset.pull()
    (tmp_path / "2.csv").write_text("city,population\nA,2\n")
    assert dataset.pull().blocks == 2, "goes on after the file that was bad"
    (tmp_path / "4.csv").write_text("city,population\nA,4\n")
    assert dataset.pull().blocks == 1, "a file that is new is read"
    (tmp_path / "1.csv").write_text("city,population\nA,100\n")
    assert dataset.pull().status == PullStatus.UP_TO_DATE.value, "what was read is not read again"
    assert [row[2] for row in rows(dataset)] == [1, 2, 3, 4]


def test_forever_in_the_order_of_changes_is_about_each_file(workspace: Workspace, tmp_path: Path) -> None:
    dataset = polled(workspace, f"kind: FilesGlob, path: '{tmp_path}/*.csv'" + BY_CHANGE + FOREVER)
    touch(tmp_path / "1.csv", "city,population\nA,1\n", 1_600_000_000)
    touch(tmp_path / "2.csv", "city,population\nA,2\n", 1_600_000_100)
    assert dataset.pull().blocks == 3
    touch(tmp_path / "1.csv", "city,population\nA,100\n", 1_600_000_200)
    assert dataset.pull().status == PullStatus.UP_TO_DATE.value, "a changed file is the newest"
    touch(tmp_path / "3.csv", "city,population\nA,3\n", 1_600_000_300)
    assert dataset.pull().blocks == 1
    touch(tmp_path / "2.csv", "city,population\nA,200\n", 1_600_000_400)
    assert dataset.pull().status == PullStatus.UP_TO_DATE.value
    assert [row[2] for row in rows(dataset)] == [1, 2, 3]


def test_forever_is_about_the_object_that_was_recorded(workspace: Workspace, tmp_path: Path) -> None:
    """A watermark set by hand is no answer of the source, and another URL is another object."""
    path = tmp_path / "in.csv"
    touch(path, ABC, 1_600_000_000)
    dataset = polled(workspace, file_url(path) + FOREVER)
    dataset.set_watermark(Timestamp.parse("2020-01-01T00:00:00Z"))
    assert dataset.pull().blocks == 2
    other = tmp_path / "other.csv"
    touch(other, "city,population\nD,4\n", 1_600_000_000)
    refetched(dataset, url=other.as_uri())
    assert dataset.pull(fetch_uncacheable=True).blocks == 1
    assert [row[1] for row in rows(dataset)] == ["A", "B", "C", "D"]
    assert dataset.pull().status == PullStatus.UP_TO_DATE.value


def test_how_long_an_answer_counts_is_not_what_is_asked_for(workspace: Workspace, tmp_path: Path) -> None:
    dataset = polled(workspace, f"kind: FilesGlob, path: '{tmp_path}/*.csv'" + FOREVER)
    (tmp_path / "1.csv").write_text("city,population\nA,1\n")
    dataset.pull()
    refetched(dataset, cache=None)
    (tmp_path / "2.csv").write_text("city,population\nA,2\n")
    assert dataset.pull().blocks == 1, "the state of the source is known still"
    assert [row[2] for row in rows(dataset)] == [1, 2]


def test_a_source_that_tells_nothing_is_known_by_its_content(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container has no state unless it says so; the hash of what it prints is one."""
    podman = tmp_path / "bin" / "podman"
    podman.parent.mkdir()
    podman.write_text(f"#!/bin/sh\ncat {tmp_path}/printed\n")
    podman.chmod(0o755)
    (tmp_path / "printed").write_text(ABC)
    dataset = polled(workspace, "kind: Container, image: cities")
    monkeypatch.setenv("PATH", f"{podman.parent}:{os.environ['PATH']}")
    assert dataset.pull().blocks == 2
    assert dataset.summary.source_state.kind == CONTENT_HASH
    assert rows(dataset, "event_time") == rows(dataset, "system_time")
    with unchanged(dataset.path):
        assert dataset.pull().status == PullStatus.UP_TO_DATE.value
    (tmp_path / "printed").write_text("city,population\nD,4\n")
    assert dataset.pull().blocks == 1
    assert len(rows(dataset)) == 4


def test_rows_are_not_repeated_when_the_state_is_unknown(workspace: Workspace, tmp_path: Path) -> None:
    """flow.uncacheable: another implementation recorded rows, but not the state that they are of."""
    path = tmp_path / "in.csv"
    touch(path, ABC, 1_600_000_000)
    dataset = polled(workspace, file_url(path))
    dataset.pull()
    refetched(dataset, url=(tmp_path / "other.csv").as_uri())
    with unchanged(dataset.path):
        assert dataset.pull().status == PullStatus.UNCACHEABLE.value
    (tmp_path / "other.csv").write_text("city,population\nD,4\n")
    assert dataset.pull(fetch_uncacheable=True).blocks == 1
    assert len(rows(dataset)) == 4


def test_a_watermark_set_by_hand_keeps_the_state_of_the_source(workspace: Workspace, tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    touch(path, ABC, 1_600_000_000)
    dataset = polled(workspace, file_url(path))
    dataset.pull()
    mark = Timestamp.now()
    dataset.set_watermark(mark)
    assert dataset.summary.watermark == mark
    assert dataset.pull().status == PullStatus.UP_TO_DATE.value


# --- preparing and preprocessing -------------------------------------------------------------------


def test_prepare_steps(workspace: Workspace, tmp_path: Path) -> None:
    path = tmp_path / "in.json.gz"
    path.write_bytes(gzip.compress(json.dumps([{"city": "A", "population": 1}]).encode()))
    script = "import json, sys; [print(json.dumps(r)) for r in json.load(sys.stdin)]"
    prepare = f"[{{kind: Decompress, format: Gzip}}, {{kind: Pipe, command: [python3, -c, '{script}']}}]"
    read = 'kind: NdJson, schema: ["city STRING", "population BIGINT"]'
    dataset = polled(workspace, file_url(path), prepare=prepare, read=read)
    dataset.pull()
    assert rows(dataset) == [[0, "A", 1]]
    assert path.exists(), "the user's file is never touched"


def test_commands_of_strangers_are_not_run(workspace: Workspace, tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text(ABC)
    dataset = polled(workspace, file_url(path), prepare="[{kind: Pipe, command: [cat]}]")
    workspace._files._key_path(dataset.id).unlink()
    with unchanged(dataset.path), pytest.raises(IngestError) as caught:
        dataset.pull()
    assert "--allow-commands" in str(caught.value.hint)
    assert "ingest.allowCommands" in str(caught.value.hint)
    assert dataset.pull(allow_commands=True).blocks == 2


def test_a_query_sees_the_input_and_nothing_else(workspace: Workspace, tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text(ABC)
    secret = tmp_path / "secret.csv"
    secret.write_text("x\n1\n")
    for query in (
        f"select * from csv.`{secret}`",
        "select reflect('java.lang.System', 'getenv', 'HOME') as city, 1L as population from input",
    ):
        preprocess = f'{{kind: Sql, engine: spark, query: "{query}"}}'
        with pytest.raises(QueryError):
            polled(workspace, file_url(path), preprocess=preprocess)
        # a dataset that came from elsewhere was not checked when it was added
        dataset = polled(workspace, file_url(path), preprocess=preprocess, check=False)
        with unchanged(dataset.path), pytest.raises(QueryError):
            dataset.pull()
        workspace.delete("cities")


def test_a_query_over_the_rows_of_pushed_files(workspace: Workspace) -> None:
    query = (
        "select upper(city) as city, population from input where population > 1000 order by population desc"
    )
    preprocess = f"      preprocess: {{kind: Sql, engine: spark, query: '{query}'}}\n"
    (dataset,) = workspace.add(manifest() + preprocess)
    push(dataset, ABC.lower())
    assert rows(dataset) == [[0, "C", 3000], [0, "B", 2000]]


@pytest.mark.parametrize(
    ("population", "value", "error", "message"),
    [
        ("population", "x", BadInputError, "row 4: column `population`: 'x' is not a valid BIGINT"),
        (
            "cast(1 / population as bigint) as population",
            "0",
            QueryError,
            r"(?i)in\.csv: query.*: division by zero",
        ),
    ],
)
def test_a_bad_value_behind_a_query(
    workspace: Workspace, tmp_path: Path,
    population: str, value: str, error: type[OdfchainError], message: str,
) -> None:  # fmt: skip
    path = tmp_path / "in.csv"
    path.write_text(f"{ABC}D,{value}\n")
    query = f"{{kind: Sql, engine: spark, query: 'select city, {population} from input'}}"
    dataset = polled(workspace, file_url(path), preprocess=query)
    with unchanged(dataset.path), pytest.raises(error, match=message):
        dataset.pull()


# --- failures --------------------------------------------------------------------------------------


def test_a_source_that_is_gone(workspace: Workspace, tmp_path: Path) -> None:
    dataset = polled(workspace, file_url(tmp_path / "nothing.csv"))
    with unchanged(dataset.path), pytest.raises(SourceNotFoundError, match=r"nothing\.csv"):
        dataset.pull()


def test_a_failed_pull_is_repeated_from_the_start(workspace: Workspace, tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    touch(path, ABC + "D,x\n", 1_600_000_000)
    dataset = polled(workspace, file_url(path), merge=SNAPSHOT)
    with unchanged(dataset.path), pytest.raises(BadInputError):
        dataset.pull()
    touch(path, ABC, 1_600_000_000)
    assert dataset.pull().blocks == 2, "the same modification time, but it was never committed"
    touch(path, "city,population\n", 1_600_000_100)
    with unchanged(dataset.path), pytest.raises(IngestError, match="the snapshot is empty"):
        dataset.pull()


def test_a_file_that_changes_while_it_is_read(workspace: Workspace, tmp_path: Path) -> None:
    """Its command passes the file on and then, once, appends to it: what was read is not what is there."""
    path, done = tmp_path / "in.csv", tmp_path / "done"
    touch(path, ABC, 1_600_000_000)
    script = f"cat; test -e {done} || {{ touch {done}; echo D,4000 >> {path}; }}"
    dataset = polled(workspace, file_url(path), prepare=f"[{{kind: Pipe, command: [sh, -c, '{script}']}}]")
    with unchanged(dataset.path), pytest.raises(IngestError) as caught:
        dataset.pull()
    assert str(caught.value) == f"{path} changed while it was read; nothing was committed"
    assert caught.value.hint == "pull again when the file is complete"
    assert dataset.pull().blocks == 2
    assert [row[1] for row in rows(dataset)] == ["A", "B", "C", "D"], "all of it, and once"
    assert dataset.pull().status == PullStatus.UP_TO_DATE.value


@pytest.mark.parametrize("glob", [False, True])
@pytest.mark.parametrize("script", ["cat; rm {0}", "rm {0}; cat; echo D,x", "rm -r {1}; cat"])
def test_a_file_that_goes_away_while_it_is_read(
    workspace: Workspace, tmp_path: Path, glob: bool, script: str
) -> None:
    """Whatever went wrong for it: the error is of our tree, says so and what to do, and nothing is recorded."""
    path = tmp_path / "there" / "in.csv"
    path.parent.mkdir()
    touch(path, ABC, 1_600_000_000)
    pipe = f"[{{kind: Pipe, command: [sh, -c, '{script.format(path, path.parent)}']}}]"
    fetch = f"kind: FilesGlob, path: '{path.parent}/*.csv'" if glob else file_url(path)
    dataset = polled(workspace, fetch, prepare=pipe)
    with unchanged(dataset.path), pytest.raises(SourceNotFoundError) as caught:
        dataset.pull()
    assert str(caught.value) == f"{path} went away while it was read; nothing was committed"
    assert caught.value.hint == "pull again when it is back"


def test_what_the_system_refuses_is_an_error_of_ours(workspace: Workspace, tmp_path: Path) -> None:
    """A workspace that is gone, in whatever is asked of it from Python."""
    path = tmp_path / "in.csv"
    touch(path, ABC, 1_600_000_000)
    dataset = polled(workspace, file_url(path))
    shutil.rmtree(workspace.path)
    asked: list[Callable[[], object]] = [
        lambda: list(workspace), lambda: workspace["cities"], lambda: len(workspace), workspace.gc,
        lambda: "cities" in workspace, dataset.pull, lambda: dataset.ingest([path]), dataset.tail, dataset.sign,
        lambda: dataset.set_watermark("2020-01-01"), lambda: workspace.sql("select 1 from cities"),
    ]  # fmt: skip
    for ask in asked:
        with pytest.raises(OdfchainError):
            ask()


def test_what_cannot_be_pulled(workspace: Workspace, tmp_path: Path) -> None:
    (bare,) = workspace.add(BARE)
    with pytest.raises(IngestError, match="no polling source"):
        bare.pull()
    with pytest.raises((IngestError, UsageError)):
        bare.ingest([tmp_path / "missing.csv"])


# --- the command -----------------------------------------------------------------------------------


def test_the_command(workspace: Workspace, run_cli: Run, tmp_path: Path) -> None:
    def pull(*args: str) -> Result:
        return run_cli("-w", workspace.path, "pull", *args)

    touch(tmp_path / "in.csv", ABC, 1_600_000_000)
    polled(workspace, f"kind: Url, url: 'file://{tmp_path}/${{{{ env.NAME }}}}.csv'")
    missing = pull("cities")
    assert (missing.code, "NAME" in missing.err) == (3, True)
    done = pull("--all", "-e", "NAME=in", "-o", "json")
    assert done.code == 0
    (row,) = done.rows
    expected = {"dataset": "cities", "status": "updated", "rows": 3, "+A": 3, "blocks": 2}
    assert {name: row[name] for name in expected} == expected
    assert pull("c%", "-e", "NAME=in", "-o", "json").rows[0]["status"] == "up to date"
    assert pull("cities", "--set-watermark", "2100-01-01", "--allow-future").code == 0
    for wrong in ([], ["cities", "--all"], ["cities", "--watch", "soon"]):
        assert pull(*wrong).code == 2


@pytest.mark.parametrize("kind", ["--root", "--derivative"])
def test_a_new_manifest_is_valid_as_it_is(
    run_cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_cli("new", "org.example.cities", kind).code == 0
    text = (tmp_path / "org.example.cities.yaml").read_text()
    assert text == run_cli("new", "org.example.cities", kind, "--output", "-").out
    (snapshot,) = read_snapshots(text)
    assert str(snapshot.name) == "org.example.cities"
    assert run_cli("new", "org.example.cities", kind).code == 2, "nothing is overwritten"
    assert run_cli("new", "x").code == 2
    schema = json.loads((ROOT / "schemas" / "DatasetSnapshot.json").read_text())
    jsonschema.validate(yaml.safe_load(text), schema)


def test_what_a_dataset_comes_from_is_pulled_first(
    workspace: Workspace, tmp_path: Path, run_cli: Run
) -> None:
    path = tmp_path / "in.csv"
    path.write_text(ABC)
    source = polled(workspace, file_url(path))
    workspace.add(derivative())
    done = run_cli("-w", workspace.path, "pull", "--recursive", "derived", "-o", "json")
    assert len(rows(source)) == 3
    assert [(r["dataset"], r["+A"]) for r in json.loads(done.out)] == [("cities", 3), ("derived", 3)]
    assert len(workspace["derived"].scan().to_arrow()) == 3
    again = run_cli("-w", workspace.path, "pull", "--recursive", "cities", "-o", "json")
    assert (again.code, json.loads(again.out)[0]["blocks"]) == (0, 0)


# --- the manifests in `fixtures/manifests/published`, here over small files of the same form ---


FOLDER = ROOT / "fixtures" / "manifests" / "published"

CASES = """\
Reported_Date,HA,Sex,Age_Group,Classification_Reported
2020-01-29,Out of Canada,M,40-49,Lab-diagnosed
2020-01-29,Interior,F,30-39,Lab-diagnosed
2020-02-06,Fraser,F,50-59,Lab-diagnosed
"""
RATES = (
    "Date,USD,JPY,GBP,CHF\n2024-03-01,1.0813,162.66,0.85538,N/A\n2024-02-29,1.0826,162.15,0.85588,0.9534\n"
)


def covid(folder: Path) -> Path:
    path = folder / "cases.csv"
    path.write_text(CASES)
    return path


def rates(folder: Path) -> Path:
    path = folder / "rates.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("eurofxref-hist.csv", RATES)
    return path


def quakes(folder: Path) -> Path:
    said = {"place": "8 km W of X", "time": 1_700_000_000_123, "updated": 1, "type": "earthquake"}

    def feature(code: str, mag: float) -> dict[str, object]:
        point = {"type": "Point", "coordinates": [-116.5, 33.1, 4.2]}
        return {"type": "Feature", "properties": said | {"code": code, "mag": mag}, "geometry": point}

    path = folder / "day.geojson"
    collection = {"type": "FeatureCollection", "features": [feature("a1", 2.5), feature("b2", 0.9)]}
    path.write_text(json.dumps(collection))
    return path


@pytest.mark.parametrize(
    ("name", "source", "columns", "expected"),
    [
        ("covid-cases", covid, ["number", "health_authority"],
         [[1, "Interior"], [2, "Out of Canada"], [1, "Fraser"]]),
        ("exchange-rates", rates, ["currency", "rate"],
         [["CHF", "0.953400"], ["GBP", "0.855880"], ["JPY", "162.150000"], ["USD", "1.082600"],
          ["GBP", "0.855380"], ["JPY", "162.660000"], ["USD", "1.081300"]]),
        ("earthquakes", quakes, ["code", "mag"], [["a1", "2.5"], ["b2", "0.9"]]),
    ],
)  # fmt: skip
def test_they_do_what_they_say(
    workspace: Workspace, tmp_path: Path,
    name: str, source: Callable[[Path], Path], columns: list[str], expected: list[list[object]],
) -> None:  # fmt: skip
    text = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    local, count = re.subn(r"url: http\S+", f"url: {source(tmp_path).as_uri()}", text, count=1)
    assert count == 1
    (dataset,) = workspace.add(local)
    assert dataset.pull().blocks == 2
    rows = dataset.scan(columns).to_arrow().to_pylist()
    shown = [[v if isinstance(v, int) else str(v) for v in row.values()] for row in rows]
    if name == "exchange-rates":  # the order of currencies within a day is the query's
        shown = sorted(shown[:4]) + sorted(shown[4:])
    assert shown == expected
    assert dataset.pull().blocks == 0
    assert dataset.verify().ok
