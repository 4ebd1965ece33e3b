"""`odfchain import`: from a file to a dataset, all of it or nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from odfchain.api.workspace import Workspace
from odfchain.cli.progress_bar import TerminalProgress
from odfchain.errors import BadInputError
from odfchain.ingest.read_formats import INPUT_FORMATS
from odfchain.odf.names import DatasetAlias
from odfchain.workspace.options import FILE_FORMATS
from tests.kit.support import Run

SALES = "id,city,amount,sold,code\n1,Bern,10.5,2024-05-01,007\n2,Basel,20,2024-05-02,008\n"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_cli: Run) -> Run:
    """The command line in a new workspace beside `sales.csv`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ODFCHAIN_WORKSPACE", raising=False)
    (tmp_path / "sales.csv").write_text(SALES)
    assert run_cli("init").code == 0
    return run_cli


def test_a_snapshot_and_a_later_file_of_it(run: Run, tmp_path: Path) -> None:
    made = run("import", "sales.csv", "--key", "id")
    assert made.code == 0, made.err
    assert made.out.splitlines()[1].split() == ["sales.csv", "2", "2", "0", "0", "0", "0-1"]
    assert "sales.csv: 2 rows, Csv, as dataset sales" in made.err
    assert "code    STRING  numbers with leading zeros, such as '007' in row 1: kept as text" in made.err
    assert "merge: snapshot by id; event time: the time of ingestion" in made.err
    assert "odfchain ingest sales FILE" in made.err
    (tmp_path / "sales.csv").write_text(SALES.replace("10.5", "11.5").replace("2,Basel", "3,Chur"))
    again = run("ingest", "sales", "sales.csv", "-o", "json", "--allow-retract")
    assert again.code == 0, again.err
    assert {op: again.rows[0][op] for op in ("+A", "-R", "-C", "+C")} == {"+A": 1, "-R": 1, "-C": 1, "+C": 1}
    assert run("verify", "sales").code == 0
    (tmp_path / "bad.csv").write_text(SALES.replace("10.5", "much"))
    strict = run("ingest", "sales", "bad.csv")
    assert strict.code == 3
    assert "amount" in strict.err
    there = run("import", "sales.csv")
    assert there.code == 5
    assert "odfchain ingest sales FILE" in there.err


def test_the_manifest_makes_the_same_dataset_again(run: Run, tmp_path: Path) -> None:
    made = run("import", "sales.csv", "--as", "my/shop.sales", "--event-time", "sold", "-o", "json")
    assert made.code == 0, made.err
    document = json.loads(made.out)
    assert (document["dataset"], document["eventTime"], document["merge"]) == (
        "my/shop.sales",
        "sold",
        "append",
    )
    assert [c["type"] for c in document["columns"]] == ["BIGINT", "STRING", "DOUBLE", "DATE", "STRING"]
    assert document["manifest"] == str(tmp_path / "manifests" / "shop.sales.yaml")
    assert (document["rows"], document["offsets"]) == (2, [0, 1])
    dataset = Workspace.open(tmp_path)["my/shop.sales"]
    assert dataset.head is not None
    assert str(dataset.head) == document["head"]
    assert str(dataset.summary.watermark).startswith("2024-05-02T00:00:00")
    assert run("verify", "my/shop.sales").code == 0
    assert run("add", "manifests/shop.sales.yaml", "--name", "again").code == 0
    assert run("ingest", "again", "sales.csv").code == 0
    tails = [json.loads(run("tail", name, "-o", "json").out) for name in ("again", "my/shop.sales")]
    for rows in tails:
        for row in rows:
            del row["system_time"]
    assert tails[0] == tails[1]
    assert [row["code"] for row in tails[0]] == ["007", "008"]


TRICKY = {
    "lines.ndjson": '{"id": 1, "t": "2024-05-01T12:00:00+02:00", "tags": ["a"], "x": {"b": [1.10]}, "n": 12345678901234567890}\n'
    '{"id": 2, "t": "2024-05-02T12:00:00.123456Z", "tags": [], "n": 1}\n',
    "quoted.csv": 'a,"b ""c""",-,A,Straße\n1,"two\nlines",,-0,"x, y"\n2,"",.5,1.0E10,\\\n',
    "semi.csv": "a;b\n1;2,5\n",
    "times.csv": "t,u,flag\n2024-05-01 12:00,2024-05-01T12:00:00.5-03:30,TRUE\n0001-01-01T00:00,9999-12-31T23:59:59Z,false\n",
    "zones.csv": "t\n2024-05-01T12:00:00Z\n2024-05-01 12:00:00.5+02:00\n1900-01-01T00:00:00.000001-17:59\n",
    "numbers.csv": "a,b\n-134.19000244140625,2.2250738585072014e-307\n.5,-1.7976931348623157e+308\n",
    "doc.json": '[{"a": 1, "b": true}, {"a": 2.5, "c": {"d": null}}]',
    "points.geojson": '{"type": "FeatureCollection", "features": [{"type": "Feature", "properties": {"n": 1}, '
    '"geometry": {"type": "Point", "coordinates": [1, 2]}}]}',
}


def test_what_was_inferred_reads_the_file(workspace: Workspace, tmp_path: Path) -> None:
    for file, content in TRICKY.items():
        (tmp_path / file).write_text(content)
        made = workspace.import_(tmp_path / file)
        (brought,) = made.outcome.inputs
        assert brought.rows == made.inferred.file.rows, file
        assert made.dataset.verify().ok, file
        assert str(made.dataset.alias) in repr(made)
    rows = workspace["lines"].scan().to_arrow().to_pylist()
    assert [row["n"] for row in rows] == ["12345678901234567890", "1"]
    assert [row["x"] for row in rows] == ['{"b":[1.10]}', None]
    assert [row["tags"] for row in rows] == [["a"], []]
    assert rows[0]["t"].isoformat() == "2024-05-01T10:00:00+00:00"
    timed = workspace.import_(
        tmp_path / "lines.ndjson", name="timed", key="id", event_time="t", merge="ledger"
    )
    assert str(timed.dataset.summary.watermark).startswith("2024-05-02T12:00:00.123")
    assert timed.dataset.verify().ok
    again = timed.dataset.ingest([tmp_path / "lines.ndjson"])
    assert again.up_to_date
    (first, second) = workspace["quoted"].scan().to_arrow().to_pylist()
    assert (first['b "c"'], first["-"], first["A"], first["Straße"]) == ("two\nlines", None, 0.0, "x, y")
    assert (second['b "c"'], second["-"], second["A"], second["Straße"]) == (None, 0.5, 1e10, "\\")


def test_nothing_stays_when_it_fails(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = Workspace.open(tmp_path)

    def nothing() -> None:
        assert len(workspace) == 0
        assert not (tmp_path / "manifests").exists()
        assert not list((workspace.path / "keys").glob("*.pem"))

    (tmp_path / "twice.csv").write_text("id,n\n1,1\n1,2\n")
    failed = run("import", "twice.csv", "--key", "id")
    assert failed.code == 3
    assert "--duplicate-keys first" in failed.err
    nothing()
    assert run("import", "twice.csv", "--key", "ids").code == 2
    assert run("import", "missing.csv").code == 2
    assert run("import", "sales.csv", "--merge", "ledger").code == 2
    nothing()
    kept = run("import", "twice.csv", "--key", "id", "--duplicate-keys", "last")
    assert kept.code == 0, kept.err
    assert run("-y", "delete", "twice").code == 0
    refused = run("import", "twice.csv", "--key", "id", "--duplicate-keys", "last")
    assert refused.code == 2
    assert "--force" in refused.err
    (tmp_path / "manifests").mkdir(exist_ok=True)
    (tmp_path / "manifests" / "twice.yaml").write_text("mine")
    assert run("import", "twice.csv", "--key", "id", "--force").code == 3
    assert (tmp_path / "manifests" / "twice.yaml").read_text() == "mine"
    forced = run("import", "twice.csv", "--key", "id", "--force", "--duplicate-keys", "first")
    assert forced.code == 0, forced.err
    assert (
        (tmp_path / "manifests" / "twice.yaml").read_text().startswith("# The columns are those of twice.csv")
    )


def test_an_interrupted_import_leaves_nothing(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.csv").write_text("a\n1\n")

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("odfchain.ingest.ingesting.Ingestion.push", interrupted)
    with pytest.raises(KeyboardInterrupt):
        workspace.import_(tmp_path / "a.csv", name="x", key="a")
    assert len(workspace) == 0
    assert [p.name for p in tmp_path.glob("*.*")] == ["a.csv"]


def test_the_formats_are_those_that_can_be_read() -> None:
    assert set(FILE_FORMATS) == set(INPUT_FORMATS)


def test_the_line_of_progress_comes_again_after_it_was_removed() -> None:
    with TerminalProgress() as progress:
        progress._shown = True
        progress.phase("Inferring the columns")
        progress.stop()
        progress.phase("Starting Spark")


def test_names_are_refused_before_anything_is_made(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("op\n1\n")
    told: list[DatasetAlias] = []
    with pytest.raises(BadInputError, match="call it '_op'"):
        workspace.import_(tmp_path / "a.csv", on_inferred=lambda plan: told.append(plan.name))
    assert told == []
    assert len(workspace) == 0
