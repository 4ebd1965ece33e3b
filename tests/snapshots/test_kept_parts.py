"""What profiles keep of slices: it is used, it is never believed when it is damaged, and it goes with its slice."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from odfchain.api.workspace import Workspace
from odfchain.errors import BadInputError
from odfchain.odf.times import Timestamp
from odfchain.profiles import state_totals as subject
from odfchain.profiles.published import KeptParts
from odfchain.upkeep.garbage import collect
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.options import GcOptions
from tests.kit.root_rows import START, add_root, append, records, schema_with

SCHEMA = schema_with(pa.field("city", pa.string()))


@pytest.fixture
def dataset(tmp_path: Path) -> DatasetFiles:
    with Workspace.init(tmp_path) as workspace:
        root = add_root(workspace, "cities", SCHEMA)
        for start, cities in ((0, ["Oslo", "Bergen"]), (2, ["Narvik"])):
            ops, times = [0] * len(cities), [START] * len(cities)
            append(root, records(SCHEMA, start, ops, times, cities), Timestamp.parse("2024-01-01T00:00:00Z"))
        return root


def cities_of(dataset: DatasetFiles, *, keep: bool = True) -> set[object]:
    counts = subject.state_totals(dataset, DatasetState.read(dataset.chain), keep=keep).columns[-1].counts
    return set(counts.keys.to_pylist())


ALL = {"Oslo", "Bergen", "Narvik"}


def test_parts_are_used_unless_all_is_to_be_read_and_not_when_they_are_damaged(
    dataset: DatasetFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    rows_of = subject._all_rows
    monkeypatch.setattr(subject, "_all_rows", lambda path, *more: read.append(path) or rows_of(path, *more))  # type: ignore[func-returns-value]
    assert cities_of(dataset, keep=False) == ALL
    assert not KeptParts(dataset).folder.exists()
    assert (cities_of(dataset), len(read)) == (ALL, 4)
    assert (cities_of(dataset), len(read)) == (ALL, 4), "nothing is read again"
    assert (cities_of(dataset, keep=False), len(read)) == (ALL, 6)
    first = min(KeptParts(dataset).folder.iterdir())
    whole = first.read_bytes()
    for damaged in (whole[:-1], whole[:40] + bytes([whole[40] ^ 1]) + whole[41:], b""):
        before = len(read)
        first.write_bytes(damaged)
        assert (cities_of(dataset), len(read)) == (ALL, before + 1)
        assert first.read_bytes() == whole, "it is kept again"


def test_what_is_kept_of_another_version_is_found_again(dataset: DatasetFiles) -> None:
    (one, _) = DatasetState.read(dataset.chain).slices()
    KeptParts(dataset).keep(one.slice.physical_hash, b"what a later program keeps")
    assert KeptParts(dataset).get(one.slice.physical_hash) == b"what a later program keeps"
    assert cities_of(dataset) == ALL


def test_parts_go_with_their_slices(dataset: DatasetFiles) -> None:
    cities_of(dataset)
    kept = set(KeptParts(dataset).folder.iterdir())
    gone = KeptParts(dataset).folder / f"f1620{'0' * 64}.arrow"
    gone.write_bytes(b"of a slice that is gone")
    tried = collect(dataset, GcOptions(dry_run=True))
    assert [(g.kind, g.files) for g in tried.removed] == [("parts of profiles", 1)]
    collect(dataset)
    assert set(KeptParts(dataset).folder.iterdir()) == kept


def test_a_slice_without_operations_has_no_state(tmp_path: Path) -> None:
    with Workspace.init(tmp_path) as workspace:
        root = add_root(workspace, "cities", SCHEMA)
        table = records(SCHEMA, 0, [0], [START], ["Oslo"]).drop_columns(["op"])
        append(root, table, Timestamp.parse("2024-01-01T00:00:00Z"))
        with pytest.raises(BadInputError, match="column `op` is not there"):
            subject.state_totals(root, DatasetState.read(root.chain))
