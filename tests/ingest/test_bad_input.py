"""Bad input on the command line: one line that says where and what, the right exit code, nothing changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from tests.kit.polled_sources import SNAPSHOT
from tests.kit.pushed_files import push, put
from tests.kit.support import Run, copied, derivative, manifest, unchanged

GOOD = "city,population\nA,1\nB,2\nC,3\nD,4\n"


@pytest.fixture
def cities(workspace: Workspace) -> Dataset:
    (dataset,) = workspace.add(manifest(SNAPSHOT))
    return dataset


@pytest.fixture(scope="module")
def made(new_workspace: Callable[[], Workspace]) -> Workspace:
    workspace = new_workspace()
    push(workspace.add(manifest(SNAPSHOT))[0], GOOD)
    return workspace


@pytest.fixture
def filled(made: Workspace, workspace: Workspace) -> Dataset:
    return copied(made, workspace)["cities"]


def refused(run: Run, dataset: Dataset, *args: Any, code: int = 3) -> str:
    """Runs an ingest that must be refused and returns what it says."""
    with unchanged(dataset.path):
        result = run("-w", dataset.path.parent.parent, "ingest", dataset.alias, *args)
    assert result.code == code, result.err
    assert result.out == ""
    lines = result.err.splitlines()
    assert lines[-1].startswith(("error: ", "hint: "))
    assert len([line for line in lines if line.startswith("error: ")]) == 1
    assert "Traceback" not in result.err
    assert "Exception" not in result.err
    return result.err


def bad_lines() -> list[Any]:
    wrong_row = "city,population\n" + "".join(f"c{n},{n}\n" for n in range(1, 100_000)) + "wrong,many\nz,1\n"
    return [
        pytest.param("city\nA\n", r"the header does not fit the schema: missing 'population'", id="missing column"),
        pytest.param("city,population,x\nA,1,2\n", "unexpected 'x'", id="extra column"),
        pytest.param("city,inhabitants,x\nA,1,2\n", "missing 'population'; unexpected 'inhabitants', 'x'", id="other columns"),
        pytest.param("city,city\nA,B\n", "names column 'city' twice", id="column twice"),
        pytest.param(wrong_row, "row 100,000: column `population`: 'many' is not a valid BIGINT", id="wrong type in row 100,000"),
        pytest.param("city,population\nA,1\nB,1.5\n", "row 2: column `population`: '1.5' is not a valid BIGINT", id="wrong type"),
        pytest.param("city,population\nA,1\nB\n", "row 2: expected 2 fields (city, population)", id="too few fields"),
        pytest.param("city,population\nA,1\nB,2,3\n", "row 2: expected 2 fields", id="too many fields"),
        pytest.param('city,population\nA,1\n"B,2\n', "line 3: a quoted field that begins here has no closing quote", id="open quote"),
        pytest.param(b"city,population\nA,1\n\xc3\x28,2\n", "line 3: byte 0xc3 is not valid utf-8", id="broken UTF-8"),
        pytest.param(b"city,population\nA,1\nB\xff", "line 3: byte 0xff is not valid utf-8", id="broken UTF-8 at the end"),
        pytest.param("city,population\nA,1\nB,2\nA,3\n", "row 3: primary key (city='A') occurs twice: also in row 1", id="key twice"),
        pytest.param("city,population\nA,1\n,2\n", "row 2: primary key column `city` is null", id="null key"),
    ]  # fmt: skip


@pytest.mark.parametrize(("content", "message"), bad_lines())
def test_a_bad_file(
    run_cli: Run, cities: Dataset, tmp_path: Path, content: str | bytes, message: str
) -> None:
    path = put(tmp_path, content, "bad.csv")
    said = refused(run_cli, cities, path)
    assert message in said
    assert str(path) in said
    assert ("write DOUBLE in the manifest" in said) == ("'1.5'" in message)


def test_a_bad_file_after_a_good_one_publishes_neither(run_cli: Run, cities: Dataset, tmp_path: Path) -> None:
    good, bad = put(tmp_path, GOOD, "good.csv"), put(tmp_path, "city,population\nA,x\n", "bad.csv")
    assert str(bad) in refused(run_cli, cities, good, bad)
    result = run_cli("-w", cities.path.parent.parent, "ingest", "cities", good)
    assert (result.code, cities.summary.record_count) == (0, 4), "and the dataset works as before"


@pytest.mark.parametrize(
    ("left", "said", "option", "retracted"),
    [
        ("", "the snapshot is empty: it would retract all 4 recorded rows", "--allow-empty", 4),
        ("A,1\n", "would retract 3 of 4 recorded rows (75%, at most 50% is allowed)", "--allow-retract", 3),
    ],
)
def test_a_snapshot_that_loses_most_rows(
    run_cli: Run, filled: Dataset, tmp_path: Path, left: str, said: str, option: str, retracted: int
) -> None:
    short = put(tmp_path, f"city,population\n{left}")
    refusal = refused(run_cli, filled, short)
    assert said in refusal
    assert option in refusal
    assert ("odfchain correct NAME FILE --allow-new" in refusal) == bool(left)
    result = run_cli("-w", filled.path.parent.parent, "ingest", "cities", short, option, "-o", "json")
    assert (result.code, result.rows[0]["-R"]) == (0, retracted)


def test_the_share_is_a_setting_of_the_workspace(run_cli: Run, filled: Dataset, tmp_path: Path) -> None:
    config = filled.path.parent.parent / "config.yaml"
    config.write_text("kind: WorkspaceConfig\nversion: 1\ncontent: {ingest: {maxRetractRatio: 0.2}}\n")
    short = put(tmp_path, "city,population\nA,1\nB,2\nC,3\n")
    assert "25%, at most 20% is allowed" in refused(run_cli, filled, short)


# --- the command itself ----------------------------------------------------------------------------


def test_an_unknown_dataset(run_cli: Run, cities: Dataset, tmp_path: Path) -> None:
    result = run_cli("-w", tmp_path / "workspace", "ingest", "citys", put(tmp_path, GOOD))
    assert (result.code, result.out) == (4, "")
    assert "no dataset is called 'citys'" in result.err
    assert "did you mean cities?" in result.err


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["nowhere.csv"], 2, "nowhere.csv: no such file"),
        (["."], 2, "is a folder"),
        ([], 2, "name the files to ingest, or use --stdin"),
        (["good.csv", "--stdin"], 2, "name the files to ingest, or use --stdin"),
        (["good.csv", "--source", "other"], 2, "no push source called 'other' (it has default)"),
        (["good.csv", "--input-format", "xlsx"], 2, "xlsx"),
        (["good.csv", "--event-time", "yesterday"], 2, "yesterday"),
    ],
)
def test_a_wrong_command(
    run_cli: Run, cities: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    args: list[str], code: int, message: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    put(tmp_path, GOOD, "good.csv")
    with unchanged(cities.path):
        result = run_cli("-w", tmp_path / "workspace", "ingest", "cities", *args)
    assert (result.code, result.out) == (code, "")
    assert message in result.err
    assert "Traceback" not in result.err


def test_not_a_parquet_file(run_cli: Run, workspace: Workspace, tmp_path: Path) -> None:
    (dataset,) = workspace.add(manifest(kind="Parquet", name="p"))
    for content, message in (
        (b"text", "not a Parquet file"),
        (b"PAR1" + b"x" * 50, "not a readable Parquet file"),
    ):
        assert message in refused(run_cli, dataset, put(tmp_path, content, "x.parquet"))


def test_a_derivative_dataset_cannot_be_pushed_to(run_cli: Run, cities: Dataset, tmp_path: Path) -> None:
    (derived,) = cities._workspace.add(derivative("SELECT * FROM cities"))
    assert "derivative dataset" in refused(run_cli, derived, put(tmp_path, GOOD), code=2)


def test_a_damaged_recorded_slice_stops_the_merge(run_cli: Run, filled: Dataset, tmp_path: Path) -> None:
    """Trust only hashes: a snapshot is never compared with bytes that are not what was recorded."""
    (slice_file,) = (filled.path / "data").iterdir()
    slice_file.write_bytes(slice_file.read_bytes()[:-1] + b"x")
    said = refused(run_cli, filled, put(tmp_path, GOOD), code=6)
    assert str(slice_file) in said
