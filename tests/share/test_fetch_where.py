"""Partial copies by a condition: what is in slices that are not here is believed of the owner alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import odfchain as odf
from odfchain.chain.signed_lines import SnapshotKind
from odfchain.odf.canonical_json import canonical_bytes
from odfchain.odf.identity import DatasetKey
from odfchain.profiles.manifests import manifest_of
from odfchain.profiles.published import publish
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.read_slices import KeptFooters
from tests.kit.root_rows import MADE, START, add_root, append, records, schema_with
from tests.kit.support import Run

SCHEMA = schema_with(pa.field("i", pa.int64()), pa.field("s", pa.string()))


@pytest.fixture
def original(tmp_path: Path) -> DatasetFiles:
    """Slices with i: n, n + 1."""
    root = add_root(odf.init(tmp_path / "original"), "five", SCHEMA)
    for n in range(5):
        append(root, records(SCHEMA, 2 * n, [0, 0], [START] * 2, [n, n + 1], [f"a{n}", "b"]), MADE)
    return root


def signed(original: DatasetFiles, key: DatasetKey | None = None) -> None:
    state = DatasetState.read(original.chain)
    publish(original, state, SnapshotKind.MANIFEST, canonical_bytes(manifest_of(original, state)), key)


def partial_copy(original: DatasetFiles, folder: Path) -> odf.Dataset:
    """The metadata, and what others say of it, as far as a pull has not brought it."""
    workspace = odf.init(folder)
    workspace.pull(original.folder.as_uri(), name="five", metadata_only=True)
    copy = workspace["five"]
    for part in ("manifests", "attestations"):
        if (original.folder / part).is_dir():
            shutil.copytree(original.folder / part, copy._files.folder / part, dirs_exist_ok=True)
    return copy


@pytest.fixture
def copy(original: DatasetFiles, tmp_path: Path) -> odf.Dataset:
    """A partial copy of what the owner has signed."""
    signed(original)
    return partial_copy(original, tmp_path / "copy")


def test_what_the_owner_signed_decides_which_slices_come(copy: odf.Dataset) -> None:
    found = copy.fetch(where="i = 5 AND s IS NOT NULL")
    assert (found.objects, found.skipped, found.unknown, found.missing_slices) == (1, 4, 0, 4)
    ways = copy.local_slices()
    assert ways is not None
    assert (ways.present, ways.total) == (1, 5)
    assert copy.fetch(where="i = 5").objects == 0
    # nothing that the owner says is kept as what was found in verified bytes
    assert not KeptFooters(copy._files).path.exists()
    assert copy.fetch(where="i > 100").skipped == 4
    whole = copy.fetch()
    assert (whole.objects, whole.missing_slices, copy.local_slices()) == (4, 0, None)


def test_of_what_nobody_says_anything_all_is_brought(original: DatasetFiles, tmp_path: Path) -> None:
    found = partial_copy(original, tmp_path / "copy").fetch(where="i = 5")
    assert (found.objects, found.skipped, found.unknown, found.missing_slices) == (5, 0, 5, 0)


def test_others_than_the_owner_are_not_believed(original: DatasetFiles, tmp_path: Path) -> None:
    signed(original, DatasetKey.generate())
    found = partial_copy(original, tmp_path / "copy").fetch(where="i = 5")
    assert (found.objects, found.unknown) == (5, 5)


@pytest.mark.parametrize("damage", [b"{}", b"", b"[]"])
def test_a_manifest_that_is_not_what_was_signed_says_nothing(
    original: DatasetFiles, copy: odf.Dataset, damage: bytes
) -> None:
    for root in (original, copy._files):
        (path,) = (root.folder / "manifests").iterdir()
        path.chmod(0o644)
        path.write_bytes(damage)
    assert copy.fetch(where="i = 5").unknown == 5


def test_a_manifest_that_is_not_here_is_brought(copy: odf.Dataset) -> None:
    shutil.rmtree(copy._files.folder / "manifests")
    assert copy.fetch(where="i = 5").skipped == 4


def test_what_was_found_in_verified_bytes_is_believed_when_they_are_gone(
    original: DatasetFiles, tmp_path: Path
) -> None:
    copy = partial_copy(original, tmp_path / "copy")
    copy.fetch()
    copy.scan(where="i = 100").to_arrow()  # looks into all footers
    for ref in copy.summary.slices():
        Path(copy._files.data.locate(ref.slice.physical_hash)).unlink()
    found = copy.fetch(where="i = 5")
    assert (found.objects, found.skipped, found.unknown) == (1, 4, 0)


def test_a_block_that_the_manifest_does_not_know_is_brought(original: DatasetFiles, tmp_path: Path) -> None:
    signed(original)
    append(original, records(SCHEMA, 10, [0], [START], [77], ["z"]), MADE)
    found = partial_copy(original, tmp_path / "copy").fetch(where="i = 5")
    assert (found.objects, found.skipped, found.unknown) == (2, 4, 1)


def test_the_command_says_what_it_left_out(
    copy: odf.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.chdir(tmp_path / "copy")
    found = run("fetch", "five", "--where", "i = 5", "-o", "json")
    assert found.code == 0
    assert found.rows[0].items() >= {"skipped": 4, "missing": 4}.items()
    found = run("fetch", "five", "--where", "abs(i) = 5")
    assert (found.code, "nothing is skipped" in found.err) == (0, True)
    found = run("fetch", "five", "--where", "nope = 5")
    assert (found.code, "column 1: there is no column `nope`" in found.err) == (3, True)
    assert run("fetch", "five", "--where", "i = 5", "--merged").code == 2
