"""`diff --profile` of datasets: which profiles are compared, what is loaded and read for it, and what is refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import odfchain as odf
from odfchain.chain.signed_lines import SnapshotKind
from odfchain.profiles.published import keep_profile, kept_profile, publish
from odfchain.workspace.dataset_state import DatasetState
from tests.kit.branch_cases import run_here
from tests.kit.drift_profiles import profile_of
from tests.kit.query_datasets import make
from tests.kit.support import Result

Run = Callable[..., Result]
EMPTIED = "places   block 2 → 3   120 → 0 rows"


def rows(operation: str, french: int) -> list[list[Any]]:
    return [[operation, "2026-01-01", f"row-{n}", "FR" if n < french else "DE"] for n in range(120)]


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[odf.Workspace]:
    """Places of two countries: one publication, one that is empty, and a word about them."""
    with odf.init(tmp_path / "workspace") as workspace:
        make(workspace, "places", {
            "made": "2026-01-01T00:00:00Z",
            "blocks": [
                {"at": "2026-01-01T00:00:00Z", "columns": [["id", "string"], ["country", "string"]]},
                {"at": "2026-01-02T00:00:00Z", "rows": rows("+A", 60)},
                {"at": "2026-01-03T00:00:00Z", "rows": rows("-R", 60)},
                {"at": "2026-01-04T00:00:00Z", "event": {"kind": "SetInfo", "description": "of people"}},
            ],
        })  # fmt: skip
        yield workspace


@pytest.fixture
def run(workspace: odf.Workspace) -> Run:
    return run_here(workspace)


def test_an_empty_publication_is_the_loudest_breach(run: Run) -> None:
    result = run("diff", "--profile", "places@2", "places@3")
    assert result.code == 3
    first, second = result.out.splitlines()
    assert first == EMPTIED
    assert second == "(dataset)   rows 0.000   limit 0.5   BREACH   120 → 0 rows"
    assert "error: 1 limit is exceeded" in result.err
    assert "note: not compared: one side has no rows, so no column is compared" in result.err


def test_one_dataset_alone_is_its_last_two_blocks_with_data(run: Run) -> None:
    for points in (["places"], ["places@4"], ["places@3"]):
        assert run("diff", "--profile", *points).out.splitlines()[0] == EMPTIED, points
    result = run("diff", "--profile", "places@2")
    assert result.code == 4
    assert "places@2 has no two blocks with data" in result.err
    assert "hint: name two" in result.err


def test_json_has_all_of_it(run: Run) -> None:
    result = run("diff", "--profile", "places", "-o", "json")
    assert result.code == 3
    found = json.loads(result.out)
    assert found.keys() == {"format", "from", "to", "verdict", "breaches", "lines", "notCompared", "notes"}
    assert (found["format"], found["verdict"], found["breaches"]) == ("odfchain-drift/1", "breach", 1)
    assert [found[side]["sequenceNumber"] for side in ("from", "to")] == [2, 3]
    assert [found[side]["rows"] for side in ("from", "to")] == [120, 0]
    assert found["from"].keys() == {"datasetId", "name", "sequenceNumber", "snapshotId", "systemTime", "rows"}
    assert found["lines"][0] == {
        "metric": "rows", "column": None, "value": 0.0, "limit": 0.5, "verdict": "breach", "text": "120 → 0 rows",
    }  # fmt: skip
    assert found["notCompared"] == [
        {"column": None, "reason": "too few rows: 120 and 0, fewer than 100, so no distribution is judged"},
        {"column": None, "reason": "one side has no rows, so no column is compared"},
    ]


def test_the_page_is_printed_and_the_limits_count_all_the_same(run: Run) -> None:
    result = run("diff", "--profile", "places", "-o", "html")
    assert result.code == 3
    assert result.out.startswith("<!DOCTYPE html>")
    assert "<strong><bdi>all rows</bdi></strong> <span>rows 0, limit 0.5</span>" in result.out
    assert "hint: raise the limits in a policy (--policy)" in result.err


def test_a_policy_decides(run: Run, tmp_path: Path) -> None:
    policy = tmp_path / "drift.yaml"
    policy.write_text(
        "kind: DriftPolicy\nversion: 1\ncontent:\n  rows: {min: 0}\n  columns: {naem: skip, id: skip}\n"
    )
    result = run("diff", "--profile", "places", "--policy", str(policy))
    assert result.code == 0
    notes = [line for line in result.err.splitlines() if "the policy" in line]
    assert notes == ["note: the policy limits a column 'naem' that neither profile has"]
    policy.write_text("kind: DriftPolicy\nversion: 1\ncontent:\n  defaults: {kl: 1}\n")
    result = run("diff", "--profile", "places", "--policy", str(policy))
    assert result.code == 3
    assert f"{policy}:4: content.defaults.kl: must be one of nullFraction, " in result.err
    result = run("diff", "--profile", "places", "--policy", str(tmp_path / "none.yaml"))
    assert (result.code, "no such file" in result.err) == (2, True)


def test_nothing_is_computed_that_must_not_be(run: Run, workspace: odf.Workspace) -> None:
    result = run("diff", "--profile", "places", "--no-compute")
    assert result.code == 4
    assert "places: no profile of block 2 is here" in result.err
    assert "hint: leave --no-compute out, and it is computed" in result.err
    for point in ("places@2", "places@3"):
        assert run("profile", point).code == 0
    shutil.rmtree(workspace["places"].path / "data")
    assert run("diff", "--profile", "places", "--no-compute").out.splitlines()[0] == EMPTIED


def test_kept_profiles_are_believed_by_their_checksum_only(workspace: odf.Workspace) -> None:
    files, found = workspace["places"]._files, workspace["places"].at(2).profile()
    block = odf.Multihash.parse(found.document["snapshot_id"])
    assert kept_profile(files, block) == json.loads(found.content)
    path = files.folder / "info" / "profiles" / str(block)
    path.write_bytes(path.read_bytes().replace(b"120", b"121"))
    assert kept_profile(files, block) is None
    keep_profile(files, workspace["places"].at(2).profile(hide=["country"]).document)
    assert kept_profile(files, block) is None, "what hides something is not kept"
    for number in range(70):
        keep_profile(files, profile_of({"v": {"type": "int64", "values": [1]}}, number=number))
    assert len([*path.parent.iterdir()]) == 64


def test_what_the_owner_published_is_taken_where_nothing_else_is_here(
    run: Run, workspace: odf.Workspace
) -> None:
    dataset = workspace["places"]
    for number in (2, 3):
        at = dataset.at(number)
        state = DatasetState.read(dataset._files.chain, at.head)
        assert publish(dataset._files, state, SnapshotKind.PROFILE, at.profile().content).published
    shutil.rmtree(dataset.path / "info" / "profiles")
    shutil.rmtree(dataset.path / "data")
    result = run("diff", "--profile", "places", "--no-compute")
    assert (result.code, result.out.splitlines()[0]) == (3, EMPTIED)
    assert "block 3: the profile is the one that its owner published" in result.err


def test_a_copy_without_data_says_what_brings_it(run: Run, workspace: odf.Workspace) -> None:
    shutil.rmtree(workspace["places"].path / "data")
    result = run("diff", "--profile", "places")
    assert result.code == 7
    assert "odfchain fetch places" in result.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("places", "--policy", "x"), "--policy, --no-compute and -o html are for --profile"),
        (("places", "2", "3", "-o", "html"), "--policy, --no-compute and -o html are for --profile"),
        (("places",), "name the point to compare with"),
        (("--profile", "places@2", "places@3", "x"), "--profile compares two profiles"),
        (("--profile", "places", "--stat"), "--stat and --keys-only show records"),
        (("--profile", "places", "-o", "csv"), "--profile prints table, json, html, not csv"),
        (("--profile", "./none.json", "places"), "none.json: no such file"),
    ],
)
def test_what_cannot_be_meant_is_refused(run: Run, arguments: tuple[str, ...], message: str) -> None:
    result = run("diff", *arguments)
    assert result.code == 2
    assert message in result.err


def test_profiles_that_are_here_are_compared_without_data_arrow_or_java(
    run: Run, workspace: odf.Workspace
) -> None:
    path = workspace["places"].path.parent.parent / "two.json"
    path.write_bytes(workspace["places"].at(2).profile().content)
    assert run("profile", "places@3").code == 0
    program = (
        "import sys; from odfchain.cli.main import main; main(sys.argv[1:]);"
        "heavy = {'pyspark', 'pyarrow', 'pandas', 'numpy', 'datasketches', 'sqlglot', 'jinja2', 'cryptography'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, "-w", workspace._files.root, "diff", "--profile", path, "places@3"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (result.returncode, result.stdout.splitlines()[0]) == (0, EMPTIED), result.stderr
