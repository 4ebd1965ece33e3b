"""Manifests of datasets: what they say of a block, what they leave out, and the command that shows them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import odfchain as odf
from odfchain.chain.signed_lines import SnapshotKind
from odfchain.cli.main import main
from odfchain.odf import events as ev
from odfchain.odf.identity import DatasetKey
from odfchain.odf.physical_hash import hash_file
from odfchain.profiles import manifests
from odfchain.profiles.manifests import manifest_document, read_manifest, stats_of_document
from odfchain.profiles.published import publish
from odfchain.slices.footers import FileStats, file_stats
from odfchain.workspace import read_slices
from odfchain.workspace.commit import StagedFile, commit
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState, SliceRef
from tests.kit.query_datasets import make
from tests.kit.root_rows import MADE
from tests.kit.snapshot_columns import column, fixture
from tests.kit.support import Result

CASES = fixture("manifests")


@pytest.fixture
def cities(tmp_path: Path) -> DatasetFiles:
    return make(odf.init(tmp_path / "ws"), "cities", CASES["dataset"])


@pytest.fixture
def run(
    cities: DatasetFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Result]
) -> Callable[..., Result]:
    monkeypatch.chdir(tmp_path / "ws")
    return run


def at(cities: DatasetFiles, block: int) -> odf.View:
    return odf.open(cities.folder.parent.parent.parent)["cities"].at(block)


@pytest.mark.parametrize("case", CASES["cases"], ids=lambda case: case["id"])
def test_manifests_of_blocks(case: dict[str, Any], cities: DatasetFiles) -> None:
    hashes = [block.hash for block in cities.chain.walk()][::-1]
    state = DatasetState.read(cities.chain, hashes[case["block"]])

    def stats_of(ref: SliceRef) -> FileStats:
        slices = [each.slice for each in state.slices()]
        if slices.index(ref.slice) == case.get("unreported"):
            return FileStats(ref.slice.offset_interval.count, ())
        return file_stats(cities.data.verified_path(ref.slice.physical_hash))

    document = json.loads(manifests.manifest_bytes(manifest_document(state, stats_of)))
    assert {name: document[name] for name in case["expect"]} == case["expect"]
    assert not set(case["absent"]) & set(document)
    assert document["snapshot_id"] == str(hashes[case["block"]])
    if case["block"]:
        assert document["parent_snapshot_id"] == str(hashes[case["block"] - 1])
    if "files_of" in case:
        earlier = DatasetState.read(cities.chain, hashes[case["files_of"]])
        assert document["files"] == json.loads(json.dumps(manifest_document(earlier, stats_of)["files"]))
    if "unreported" not in case:
        assert [file["stats"] for file in document["files"]] == CASES["stats"][: len(document["files"])]


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ("event_time >= '2026-01-01'", [1]),
        ("city = 'Oslo'", [0]),
        ("people > 9007199254740992", [1]),
        ("people IS NULL", [0]),
        ("upper(city) = 'OSLO'", [0, 1]),
        ("people < 0", []),
    ],
)
def test_files_that_may_hold_a_row(where: str, kept: list[int], cities: DatasetFiles) -> None:
    found = at(cities, 4).manifest()
    assert found.prune(where) == [found.files[n] for n in kept]
    assert found.understands(where) is (not where.startswith("upper"))


@pytest.mark.parametrize("case", fixture("columns")["cases"], ids=lambda case: case["id"])
def test_statistics_are_the_same_after_a_document(case: dict[str, Any], tmp_path: Path) -> None:
    table = pa.table({name: column(*given) for name, given in case["columns"].items()})
    pq.write_table(table, tmp_path / "slice")
    found = file_stats(tmp_path / "slice")
    document = json.loads(manifests.canonical_bytes({"stats": found.to_document()}))
    assert stats_of_document(document, table.schema) == FileStats(found.row_count, found.columns)
    assert stats_of_document(document, pa.schema([])).columns == ()


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int64(), "x"), (pa.int64(), True), (pa.int64(), 1.5), (pa.float64(), "NaN"), (pa.bool_(), 1),
        (pa.string(), 1), (pa.date32(), "2020-13-01"), (pa.timestamp("ms"), "2020"), (pa.time64("us"), "1:2"),
        (pa.decimal128(4), "sNaN"), (pa.binary(), "?"), (pa.list_(pa.int64()), 1), (pa.date32(), None),
    ],
)  # fmt: skip
def test_bounds_of_another_type_are_none(kind: pa.DataType, value: Any) -> None:
    schema = pa.schema([("c", kind)])
    told = {"name": "c", "null_count": 0, "min": value, "max": value}
    for each in stats_of_document({"stats": {"row_count": 1, "columns": [told]}}, schema).columns:
        assert (each.low, each.high) == (None, None)


@pytest.mark.parametrize(
    "stats",
    [None, {}, {"row_count": -1, "columns": []}, {"row_count": 1, "columns": [{}]}, {"row_count": True},
     {"row_count": 1, "columns": [{"name": "c", "null_count": "0"}]}, {"row_count": 1, "columns": [{"name": []}]}],
)  # fmt: skip
def test_statistics_of_another_form_are_refused(stats: Any) -> None:
    with pytest.raises(odf.errors.CodecError):
        stats_of_document({"stats": stats}, pa.schema([("c", pa.int64())]))


# --- the command -----------------------------------------------------------------------------------


def test_the_table(run: Callable[..., Result], cities: DatasetFiles) -> None:
    state = DatasetState.read(cities.chain)
    first, second = (str(ref.slice.physical_hash) for ref in state.slices())
    sizes = [ref.slice.size for ref in state.slices()]
    head = str(state.head)
    done = run("manifest", "cities", "--where", "event_time >= '2026-01-01'")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        f"snapshot {head[:10]}…{head[-4:]}  block 4  2 slices  3 records",
        "slice             records     size  event_time               may match",
        f"data/{first[:10]}…        2  {sizes[0] / 1024:.1f} KiB  2021-12-28 … 2022-02-03  no",
        f"data/{second[:10]}…        1  {sizes[1] / 1024:.1f} KiB  2026-09-05 … 2026-09-05  yes",
    ]
    assert "may match" not in run("manifest", "cities@2").out
    assert run("manifest", "cities@0").out.splitlines()[0].endswith("block 0  0 slices  0 records")


def test_json_is_the_one_text(run: Callable[..., Result], cities: DatasetFiles) -> None:
    assert run("manifest", "cities@2", "-o", "json").out.encode() == at(cities, 2).manifest().content + b"\n"
    assert run("manifest", "cities", "-o", "json", "--where", "people = 1").code == 2


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("people = 1 and nope > 2", "the condition, line 1, column 16: there is no column `nope`"),
        ("`no pe` = 1", "the condition, line 1, column 1: there is no column `no pe`"),
        ("people = = 1", "the condition, line 1, column 10: something is missing here"),
        ("people = 1; DROP TABLE x", "is more than a condition"),
        ("people = 1 GROUP BY people", "is more than a condition"),
        ("", "the condition: something is missing here"),
    ],
)
def test_what_is_no_condition_ends_with_3_and_its_place(
    run: Callable[..., Result], where: str, said: str
) -> None:
    done = run("manifest", "cities", "--where", where)
    assert (done.code, done.out) == (3, "")
    assert said in done.err
    if "column" in said:
        assert f"  {where}\n" in done.err
        assert "^" in done.err


def test_a_condition_that_is_not_understood_skips_nothing(run: Callable[..., Result]) -> None:
    done = run("manifest", "cities", "--where", "upper(city) LIKE 'O%'")
    assert done.code == 0
    assert [line.split()[-1] for line in done.out.splitlines()[2:]] == ["yes", "yes"]
    assert "note: nothing is skipped" in done.err


def forget_first_slice(cities: DatasetFiles) -> None:
    """As in a copy that never had it."""
    (first, _) = DatasetState.read(cities.chain).slices()
    Path(cities.data.locate(first.slice.physical_hash)).unlink()
    read_slices.KeptFooters(cities).path.unlink(missing_ok=True)
    read_slices._lines_in.cache_clear()


@pytest.mark.parametrize("command", ["manifest", "profile"])
def test_slices_that_are_not_here_end_with_7(
    run: Callable[..., Result], cities: DatasetFiles, command: str
) -> None:
    forget_first_slice(cities)
    done = run(command, "cities")
    assert (done.code, done.out) == (7, "")
    assert "is not here" in done.err
    assert "`odfchain fetch cities` brings them" in done.err


def test_slices_that_are_not_here_are_described_by_the_owner(
    run: Callable[..., Result], cities: DatasetFiles
) -> None:
    right = run("manifest", "cities", "--write")
    assert (right.code, "published: manifests/f1620" in right.err) == (0, True)
    stranger = DatasetKey.generate()
    state = DatasetState.read(cities.chain)
    publish(cities, state, SnapshotKind.MANIFEST, b"{}", stranger)
    shown = run("manifest", "cities", "--where", "city = 'Oslo'")
    content = run("manifest", "cities", "-o", "json").out
    forget_first_slice(cities)
    done = run("manifest", "cities", "--where", "city = 'Oslo'")
    assert (done.code, done.out) == (0, shown.out)
    assert done.err == "note: not all slices are here: this is the manifest that the owner signed\n"
    assert run("manifest", "cities", "-o", "json").out == content
    assert run("manifest", "cities", "--write").code == 7, "nobody signs what he has not made"
    # one that names other files than the chain is not believed
    publish(cities, state, SnapshotKind.MANIFEST, json.dumps(json.loads(content) | {"files": []}).encode())
    assert run("manifest", "cities").code == 7


def test_a_manifest_is_written_and_signed(
    run: Callable[..., Result], cities: DatasetFiles, tmp_path: Path
) -> None:
    key = tmp_path / "key.pem"
    assert run("key", "create", str(key)).code == 0
    done = run("manifest", "cities@2", "--write", "--key", str(key), "-o", "json")
    dataset = at(cities, 2)
    (line,) = dataset.published()
    assert done.err == f"published: manifests/{line.object}, signed by {line.signer}\n"
    assert str(line.signer).startswith("did:key:")
    assert (line.block, line.object) == (dataset.head, dataset.manifest().hash)
    assert dataset.published_document(line) + b"\n" == done.out.encode()
    assert run("manifest", "cities", "--key", str(key)).code == 2
    assert run("manifest", "cities", "--write", "--key", "nothing").code != 0


def test_without_a_key_a_manifest_is_written_and_not_published(
    cities: DatasetFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = (tmp_path / "there").as_uri()
    odf.open(tmp_path / "ws")["cities"].push(url)
    other = odf.init(tmp_path / "other")
    copy = other.pull(url, name="cities").dataset
    (copy.path / "attestations" / "snapshots.jws").unlink(missing_ok=True)
    monkeypatch.chdir(tmp_path / "other")
    assert main(["manifest", "cities", "--write"]) == 0
    assert "note: written, not published: manifests/f1620" in capsys.readouterr().err
    assert copy.published() == []
    assert (copy.path / "manifests" / str(copy.manifest().hash)).is_file()


@pytest.mark.parametrize("command", ["manifest", "profile"])
def test_a_slice_that_is_no_parquet_file_ends_with_6(
    run: Callable[..., Result], cities: DatasetFiles, command: str
) -> None:
    state = DatasetState.read(cities.chain)
    with cities.staging() as folder:
        path = folder / "made"
        path.write_bytes(b"PAR1 and no more")
        physical, size = hash_file(path)
        interval = ev.OffsetInterval(start=3, end=3)
        piece = ev.DataSlice(
            logical_hash=physical, physical_hash=physical, offset_interval=interval, size=size
        )
        event = ev.AddData(prev_offset=2, new_data=piece, new_watermark=state.watermark)
        commit(cities, state, [event], [StagedFile(path, physical)], system_time=MADE)
    done = run(command, "cities")
    assert (done.code, done.out) == (6, "")
    assert str(physical) in done.err


def test_a_manifest_that_is_too_large_ends_with_3(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifests, "MOST_BYTES", 1_000)
    done = run("manifest", "cities", "-o", "json")
    assert (done.code, done.out) == (3, "")
    assert "`odfchain compact`" in done.err
    with pytest.raises(odf.errors.CodecError, match="at most 1,000"):
        read_manifest(b" " * 1_001)


def test_another_format_version_is_refused() -> None:
    with pytest.raises(odf.errors.UnsupportedVersionError):
        read_manifest(b'{"schema_name":"lode-manifest","format_version":"2.0.0"}')
    for text in (b"", b"[]", b"{}", b"[" * 100_000):
        with pytest.raises(odf.errors.CodecError):
            read_manifest(text)
