"""`odfchain export` and `odfchain inspect slices`: a dataset for other programs, whole and at a point."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from odfchain.api.workspace import Workspace
from tests.kit.queried_workspace import add_numbers, new_workspace
from tests.kit.support import Run


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    workspace = new_workspace(tmp_path_factory.mktemp("exported"))
    add_numbers(workspace, "My.Rows", [3, 5] + [7] * 11)
    return workspace


@pytest.fixture
def run(workspace: Workspace, monkeypatch: pytest.MonkeyPatch, run: Run) -> Run:
    monkeypatch.chdir(workspace.path.parent)
    return run


def values(text: str) -> list[int]:
    return [int(row["v"]) for row in csv.DictReader(io.StringIO(text))]


def test_records_come_in_order_at_any_point(run: Run) -> None:
    for name, count in (("my.rows", 85), ("My.Rows@3", 8), ("my.rows@2", 3)):
        result = run("export", name)
        assert (result.code, values(result.out)) == (0, list(range(count)))
        assert result.err.startswith("My.Rows @ ")
        assert f", {count} rows, " in result.err
    state = run("export", "my.rows@3", "--rows", "state", "-o", "ndjson").out.splitlines()
    assert [json.loads(line)["v"] for line in state] == list(range(8))


def test_files_have_so_many_records(run: Run, tmp_path: Path) -> None:
    for output in ("csv", "ndjson", "parquet"):
        folder = tmp_path / output
        result = run("export", "my.rows", "-o", output, "--to", folder, "--records-per-file", "40")
        assert result.code == 0
        assert "85 rows in 3 files" in result.err
        assert sorted(path.name for path in folder.iterdir()) == [f"{n:06}.{output}" for n in (1, 2, 3)]
    assert [len(values((tmp_path / "csv" / f"{n:06}.csv").read_text())) for n in (1, 2, 3)] == [40, 40, 5]
    tables = [pq.read_table(tmp_path / "parquet" / f"{n:06}.parquet") for n in (1, 2, 3)]
    assert [v for t in tables for v in t.column("v").to_pylist()] == list(range(85))
    one = run("export", "my.rows", "--to", f"{tmp_path}/one/")
    assert one.err.split(", ")[1] == "85 rows in 1 file"


def test_the_name_of_a_file_says_its_format(run: Run, tmp_path: Path) -> None:
    assert run("export", "my.rows", "--to", tmp_path / "a.parquet").code == 0
    assert pq.read_table(tmp_path / "a.parquet").column("offset").to_pylist() == list(range(85))
    assert run("export", "my.rows", "--to", tmp_path / "a.txt").code == 0
    assert values((tmp_path / "a.txt").read_text()) == list(range(85))


def test_names_and_points_that_are_none(run: Run) -> None:
    for name, code in (("nothing", 4), ("my.rows@99", 4), ("my.rows@soon", 3), ("a b", 2)):
        assert run("export", name).code == code
        assert run("inspect", "slices", name).code == code


def test_a_folder_appears_whole(run: Run, workspace: Workspace, tmp_path: Path) -> None:
    other = new_workspace(tmp_path / "w")
    root = add_numbers(other, "x", [1, 1])
    first, last = sorted((root.folder / "data").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    data = last.read_bytes()
    last.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    args = ("-w", tmp_path / "w", "export", "x", "--records-per-file", "1", "--to", tmp_path / "out")
    result = run(*args)
    assert result.code == 6
    assert str(last) in result.err
    assert not (tmp_path / "out").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["w"]
    assert first.is_file()


def test_slices_are_listed_with_their_files(run: Run, workspace: Workspace) -> None:
    rows = run("inspect", "slices", "my.rows@3", "-o", "json").rows
    assert [row["offsetInterval"] for row in rows] == [{"start": 0, "end": 2}, {"start": 3, "end": 7}]
    assert [(row["block"], row["records"], row["here"]) for row in rows] == [(2, 3, True), (3, 5, True)]
    for row in rows:
        path = Path(row["path"])
        assert path.name == row["physicalHash"]
        assert path.stat().st_size == row["size"]
        assert pq.read_table(path).num_rows == row["records"]
    lines = list(csv.DictReader(io.StringIO(run("inspect", "slices", "my.rows", "-o", "csv").out)))
    assert [int(line["end"]) for line in lines][-1] == 84
    assert len(run("inspect", "slices", "my.rows", "--wide").out.splitlines()) == 14
    missing = Path(rows[1]["path"])
    moved = missing.rename(missing.with_name("moved"))
    try:
        assert [r["here"] for r in run("inspect", "slices", "my.rows@3", "-o", "json").rows] == [True, False]
    finally:
        moved.rename(missing)


def test_tables(run: Run, tmp_path: Path) -> None:
    """Made, continued, and refused; what was done is said on standard error."""
    folder = tmp_path / "table"
    for name, said in (
        ("my.rows@3", "My.Rows @ 3 (f1620"),
        ("my.rows", "11 versions, 11 files, "),
        ("my.rows", "already exported"),
    ):
        result = run("export", name, "-o", "delta", "--to", folder)
        assert (result.code, result.out) == (0, "")
        assert said in result.err
        assert f" as delta in {folder}: " in result.err
    result = run("export", "my.rows@3", "-o", "delta", "--to", folder)
    assert result.code == 5
    assert "no block up to 3 has: it is of a later one" in result.err
    assert run("export", "my.rows@3", "-o", "delta", "--to", folder, "--force").code == 0
    assert run("export", "my.rows", "-o", "lode", "--to", tmp_path / "lode").code == 0
    state = run("export", "my.rows", "-o", "iceberg", "--to", tmp_path / "s", "--rows", "state")
    assert (state.code, state.err.count("note:")) == (0, 0)
    notes = run("export", "my.rows", "-o", "iceberg", "--to", tmp_path / "r").err
    assert "note: Iceberg's Java readers refuse unsigned columns (offset)" in notes


@pytest.mark.parametrize(
    ("args", "said", "code"),
    [
        (["--records-per-file", "2"], "--to DIR", 2),
        (["--to", "."], "not empty", 5),
        (["--to", "no/b/"], "no such folder", 2),
        (["--to", "no/b"], "no such folder", 2),
        (["--to", "s3://bucket/a.csv"], "files are written to a folder of this machine", 2),
        (["-o", "delta"], "-o delta --to FOLDER", 2),
        (["-o", "delta", "--to", "t", "--records-per-file", "2"], "without --records-per-file", 2),
        (["--force", "-o", "csv"], "are for tables", 2),
        (["--catalog", "c"], "are for tables", 2),
        (["-o", "delta", "--to", "t", "--catalog", "c"], "--catalog is for Iceberg", 2),
        (["-o", "delta", "--to", "s3://bucket/t"], "exports are written to folders", 2),
    ],
)
def test_what_is_refused(args: list[str], said: str, code: int, run: Run) -> None:
    result = run("export", "my.rows", *args)
    assert (result.code, result.out) == (code, "")
    assert said in result.err
