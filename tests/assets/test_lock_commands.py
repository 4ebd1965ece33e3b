"""`assets derive` and `relocate` find out where the lock goes before they ask a store, and tell every fault."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import odfchain as odf
from odfchain.assets.lock_table import AssetRow, RowFault
from odfchain.assets.locks import table_of
from odfchain.assets.objects import Facts
from odfchain.assets.stac import AssetFault
from odfchain.cli.main import main
from odfchain.errors import AssetError, FetchError, SourceNotFoundError
from odfchain.storage.locations import Location
from tests.kit.lock_datasets import lock_dataset
from tests.kit.lying_objects import LyingObjects
from tests.kit.query_datasets import make
from tests.kit.small_branches import SPEC
from tests.kit.support import Run


@pytest.fixture
def server() -> Iterator[LyingObjects]:
    with LyingObjects({"/1.tif": {}, "/2.tif": {}}) as found:
        yield found


@pytest.fixture
def catalog(server: LyingObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Three Items; the third one's asset is not there."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "items.ndjson"
    with path.open("w") as file:
        for n in (1, 2, 3):
            assets = {"B04": {"href": f"{server.origin}/{n}.tif"}}
            file.write(json.dumps({"type": "Feature", "id": f"s{n}", "assets": assets}) + "\n")
    return str(path)


@pytest.mark.parametrize(
    ("target", "code", "said"),
    [
        (["--into", "nosuch"], 4, "nosuch"),
        (["--into", "other"], 3, "not an asset lock: column `item_id` is missing"),
        (["--into", "s2.assets", "--item", "s1"], 2, "all others would be retracted"),
        (["--into", "s2.assets", "--asset", "B04"], 2, "all others would be retracted"),
        (["--into", "s2.assets", "--checksum", "use-etag"], 2, "s2.assets: has no column `file_checksum`"),
        (["--into", "s2.assets", "--output", "x.parquet"], 2, "--output FILE or --into DATASET"),
        ([], 2, "--output FILE or --into DATASET"),
        (["--output", "x.parquet", "--allow-retract"], 2, "--allow-retract is for --into"),
        (["--output", "x.parquet", "--late-edits", "warn"], 2, "--late-edits is for --into"),
    ],
)
def test_targets_are_judged_first(
    catalog: str, server: LyingObjects, tmp_path: Path, assets: Run, target: list[str], code: int, said: str
) -> None:
    workspace = odf.init(tmp_path)
    lock_dataset(workspace)
    make(workspace, "other", SPEC)
    done = assets("derive", catalog, "--allow-private", *target)
    assert (done.code, said in done.err) == (code, True)
    assert not server.requests
    assert not (tmp_path / "x.parquet").exists()


def test_faults_are_told_line_by_line_and_keeping_on_changes_no_exit_code(catalog: str, assets: Run) -> None:
    derive = ["derive", catalog, "--allow-private", "--output", "x.parquet"]
    done = assets(*derive)
    told = {"error: s3 B04: no such object", "nothing is written; --keep-going leaves out what failed"}
    assert (done.code, told - {*done.err.splitlines()}) == (8, set())
    assert not Path("x.parquet").exists()
    done = assets(*derive, "--keep-going")
    assert done.code == 8
    assert re.search("^probed 2 assets of 3 items.*, 1 left out$", done.err, re.MULTILINE)
    assert [row.item_id for row in odf.AssetLock.read("x.parquet").rows] == ["s1", "s2"]


def test_what_could_not_be_reached_stays_in_the_dataset(tmp_path: Path) -> None:
    """A store that is down for a night retracts nothing; an object that is gone, or refused, is left out."""
    rows = [AssetRow(f"s{n}", "B04", Location("s3", "b", None, f"{n}"), Facts(n)) for n in range(5)]
    errors = [FetchError("down"), SourceNotFoundError("gone"), AssetError("signed"), FetchError("down")]
    faults = [AssetFault(f"s{n}", "B04", error) for n, error in enumerate(errors)]
    new = odf.AssetLock(table_of(rows[4:]), tmp_path, faults=tuple(faults))
    known = odf.AssetLock(table_of(rows[:2]), tmp_path)
    assert new.completed_by(known, probed=True).rows == [rows[0], rows[4]]


def test_locks_without_rows_are_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.chdir(tmp_path)
    for command in (["init"], ["new", "night", "--assets"], ["add", "night.yaml"]):
        assert run(*command).code == 0
    assert run("assets", "export", "night", "--output", "x.parquet").code == 0
    assert odf.AssetLock.read("x.parquet").rows == []
    done = run("assets", "check", "night")
    assert (done.code, "no assets" in done.err) == (0, True)


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (["check", "x.parquet", "--item", "s9"], 3, "the lock has no item or asset called s9"),
        (["href", "x.parquet", "--asset", "B4"], 3, "the lock has no item or asset called B4"),
        (["check", "x.parquet", "--offline", "--item", "s1"], 2, "leave out --item"),
        (["check", "x.parquet", "--offline", "--checksum"], 2, "leave out --item"),
        (["check", "folder"], 4, "no such file, and not inside a workspace"),
        (["check", "folder.parquet"], 4, "folder.parquet: is a folder\nhint: name the lock in it"),
        (["check", "xx.parquet"], 4, "xx.parquet: no such file\nhint: did you mean x.parquet?"),
        (["check", "cut.parquet"], 6, "cut.parquet: not a readable Parquet file"),
        (["check", "cut.parquet", "--offline"], 6, "get the lock again"),
        (["relocate", "x.parquet", "--to", "m", "--output", "y", "--prefix", "s3://b"], 2, "--layout source-key"),
        (["derive", "--slices", "d", "--at", "x", "--output", "y", "--checksum", "use-etag"], 2, "all slices"),
        (["derive", "--slices", "d", "--at", "x", "--output", "y", "--item", "s1"], 2, "all slices"),
        (["derive", "items.ndjson", "--output", "y", "--no-probe-metadata", "--checksum", "calculate-always"],
         2, "none is asked for"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_told(
    catalog: str, server: LyingObjects, assets: Run, command: list[str], code: int, said: str
) -> None:
    assert assets("derive", catalog, "--no-probe-metadata", "--output", "x.parquet").code == 0
    Path("folder").mkdir()
    Path("folder.parquet").mkdir()
    Path("cut.parquet").write_bytes(Path("x.parquet").read_bytes()[:300])
    done = assets(*command)
    assert (done.code, said in done.err) == (code, True)
    assert not server.requests
    assert not Path("y").exists()


def test_case_17_nothing_that_is_said_or_written_has_a_secret(
    server: LyingObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    caplog.set_level("DEBUG")
    hrefs = {
        "signed": f"{server.origin}/1.tif?X-Amz-Signature=hunter2",
        "user": f"{server.origin.replace('//', '//me:hunter2@')}/1.tif",
        "plain": f"{server.origin}/1.tif",
        "stripped": f"{server.origin}/2.tif?sig=hunter2",
    }
    assets = {name: {"href": href} for name, href in hrefs.items()}
    Path("a.json").write_text(json.dumps({"type": "Feature", "id": "a", "assets": assets}))
    derive = ["--debug", "assets", "derive", "a.json", "--allow-private", "--keep-going", "--output"]
    assert main([*derive, "x.parquet"]) == main([*derive, "y.parquet", "--strip-query"]) == 3
    for output in ("table", "json", "ndjson", "html"):
        assert main(["assets", "check", "y.parquet", "--allow-private", "-o", output]) == 0
    assert [row.asset_key for row in odf.AssetLock.read("y.parquet").rows] == ["plain", "signed", "stripped"]
    said = capsys.readouterr()
    assert "X-Amz-Signature" in said.err
    assert "hunter2" not in said.err + said.out + caplog.text
    assert b"hunter2" not in Path("x.parquet").read_bytes() + Path("y.parquet").read_bytes()


def test_ids_of_faulty_rows_are_shown_short_and_do_nothing() -> None:
    fault = RowFault(0, "a\x1b[2J" + "b" * 5_000, None, "named twice")
    assert str(fault).startswith("row 0 (a\\x1b[2Jbbb")
    assert len(str(fault)) < 300
