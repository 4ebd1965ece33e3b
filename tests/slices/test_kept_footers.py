"""What is kept of the footers of slices: true, cheap to lose, and never of bytes that were not verified."""

from __future__ import annotations

import decimal
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odfchain.api.workspace import Workspace
from odfchain.branches.recording import stage_changes
from odfchain.errors import ObjectCorruptedError, SliceNotFoundError
from odfchain.profiles.manifests import manifest_of
from odfchain.slices.footers import FileStats, file_stats
from odfchain.upkeep.garbage import collect
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.options import GcOptions
from odfchain.workspace.read_slices import KeptFooters
from tests.kit.root_rows import MADE, START, add_root, append, records, schema_with

SCHEMA = schema_with(pa.field("i", pa.int64()), pa.field("s", pa.string()))


@pytest.fixture
def root(tmp_path: Path) -> DatasetFiles:
    """Two slices that were written by another writer."""
    found = add_root(Workspace.init(tmp_path / "ws"), "root", SCHEMA)
    for start in (0, 2):
        rows = records(SCHEMA, start, [0, 0], [START] * 2, [start, None], ["ä", "b"])
        append(found, rows, MADE)
    return found


def lines(root: DatasetFiles) -> list[bytes]:
    return KeptFooters(root).path.read_bytes().splitlines()


def path_of(root: DatasetFiles, number: int) -> Path:
    (*refs,) = DatasetState.read(root.chain).slices()
    return Path(root.data.locate(refs[number].slice.physical_hash))


def all_of(root: DatasetFiles) -> list[FileStats]:
    kept = KeptFooters(root)
    return [kept.stats(ref) for ref in DatasetState.read(root.chain).slices()]


def test_every_type_is_read_back_as_it_was(tmp_path: Path) -> None:
    columns = {
        "u": pa.array([2**63 + 5, 1], pa.uint64()), "f": [1.5, -0.0], "inf": [float("-inf"), float("inf")],
        "nan": [float("nan")] * 2, "s": ["ä", "x\n"], "b": pa.array([b"", b"\xff"]), "l": [[1], [2]],
        "d": pa.array([decimal.Decimal("1.20"), None], pa.decimal128(10, 2)), "bool": [True, False],
        "t": pa.array([1, 2], pa.timestamp("ms", "UTC")), "n": pa.array([1, 2], pa.timestamp("ns")),
        "date": pa.array([1, 2], pa.date32()), "time": pa.array([1, 2], pa.time64("us")),
        "st": [{"x": 1}, {"x": None}], "fixed": pa.array([b"ab", b"cd"], pa.binary(2)),
        "half": pa.array([1, 2], pa.float16()), "null": pa.nulls(2), "a.b": [1, 2], "long": ["x" * 5_000] * 2,
    }  # fmt: skip
    pq.write_table(pa.table(columns), tmp_path / "file")
    found = file_stats(tmp_path / "file")
    text = found.to_text()
    assert FileStats.of_text(text) == found


@pytest.mark.parametrize("text", ["", "[]", "[1, 2, 3]", '[1, "[[], []]", [1]]', "{}", '[1, "x", []]', "[1"])
def test_what_is_no_line_is_none(text: str) -> None:
    with pytest.raises(ValueError):
        FileStats.of_text(text)


def test_a_commit_keeps_what_the_writer_says_and_reads_nothing(
    root: DatasetFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = DatasetState.read(root.chain)
    rows = pa.table({"op": pa.array([0], pa.uint8()), "event_time": [START], "i": [7], "s": ["x"]})
    with root.staging() as staging:
        made = stage_changes(root, state, rows, staging=staging, system_time=MADE)
        made.commit(root, state, MADE)
    assert len(lines(root)) == 1
    ref = DatasetState.read(root.chain).slices()[-1]
    true = file_stats(Path(root.data.locate(ref.slice.physical_hash)))
    monkeypatch.setattr("odfchain.slices.footers.file_stats", None)
    assert KeptFooters(root).stats(ref) == true


def test_a_slice_is_hashed_and_read_once(root: DatasetFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    first = all_of(root)
    assert [each.column("i").low for each in first if each.column("i")] == [0, 2]
    assert len(lines(root)) == 2
    monkeypatch.setattr("odfchain.slices.footers.file_stats", None)
    assert all_of(root) == first
    assert manifest_of(root, DatasetState.read(root.chain))["row_count"] == 4


def test_bytes_that_were_not_verified_are_never_kept(root: DatasetFiles) -> None:
    path = path_of(root, 0)
    other = records(SCHEMA, 0, [0, 0], [START] * 2, [100, 200], ["y", "z"])
    pq.write_table(other, path)
    with pytest.raises(ObjectCorruptedError):
        all_of(root)
    assert not KeptFooters(root).path.exists()
    path.unlink()
    with pytest.raises(SliceNotFoundError):
        all_of(root)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data.replace(b'"i', b'"j'),
        lambda data: data[: len(data) // 3],
        lambda data: data[:-3],
        lambda data: b"",
        lambda data: b"\xff\x00 nonsense\n" * 3 + data[5:],
    ],
    ids=["changed", "cut", "torn", "emptied", "nonsense"],
)
def test_lines_that_are_damaged_are_made_anew(root: DatasetFiles, damage: object) -> None:
    first = all_of(root)
    path = KeptFooters(root).path
    good = path.read_bytes()
    assert callable(damage)
    path.unlink()
    path.write_bytes(damage(good))
    assert all_of(root) == first
    good_lines = set(good.splitlines())
    assert good_lines <= set(lines(root))
    KeptFooters(root).drop(lambda name: True)
    assert set(lines(root)) == good_lines
    assert all_of(root) == first


def test_lines_of_slices_that_are_not_needed_go(root: DatasetFiles) -> None:
    all_of(root)
    refs = DatasetState.read(root.chain).slices()
    KeptFooters(root).drop(lambda name: name == refs[1].slice.physical_hash)
    assert len(lines(root)) == 1
    assert KeptFooters(root).known(refs[0].slice.physical_hash) is None
    assert KeptFooters(root).known(refs[1].slice.physical_hash) is not None


def test_garbage_collection_drops_them(root: DatasetFiles, tmp_path: Path) -> None:
    all_of(root)
    workspace = Workspace.open(tmp_path / "ws")
    dataset = workspace["root"]
    before = DatasetState.read(root.chain).slices()[0].block_hash
    dataset.reset(before, force=True)
    collect(root, GcOptions(drop_refs=True), now=lambda: time.time() + 10**6)
    assert len(lines(root)) == 1


def test_a_place_that_takes_nothing_costs_time_only(root: DatasetFiles) -> None:
    KeptFooters(root).path.mkdir()
    assert len(all_of(root)) == 2
