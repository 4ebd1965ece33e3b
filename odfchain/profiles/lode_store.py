"""A Lode store: a dataset's slices once, a manifest for each block that was exported, and the latest of them.

`datasets/DID/data/SLICE`, `datasets/DID/snapshots/BLOCK/manifest.json`, `datasets/DID/latest`. The manifest
is the dataset's own with its paths from the store's root, and with a codec that Lode's library has not: its
own for Parquet takes columns by their order, and gives the values of others. Slices come first, then the
manifest, then the pointer, so that none of them names what is not there. Source: RFC-039, RFC-045; Lode 0.9.
"""

from __future__ import annotations

from pathlib import Path

from odfchain.errors import InvalidIdError
from odfchain.odf.canonical_json import canonical_bytes
from odfchain.odf.identity import Multihash
from odfchain.profiles.export_folder import ExportFolder, check_line, parted
from odfchain.profiles.manifests import manifest_of
from odfchain.progress import Progress
from odfchain.storage import fsio
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.read_slices import verified_slice

FOLDER = "datasets"
_SNAPSHOTS, _MANIFEST, _POINTER = "snapshots", "manifest.json", "latest"
CODEC = "odf-parquet"
_BEFORE_CODEC = b'{"checksum_algorithm":"sha3-256","codec":'
_EARLIER, _NOW = (_BEFORE_CODEC + b'"%s"' % name for name in (b"parquet", CODEC.encode()))
"""Prefixes of manifests: earlier ones named the codec of Lode's library."""


def exported_snapshots(folder: Path) -> list[str]:
    """The names of the snapshots that have manifests."""
    with fsio.storage_errors(folder):
        return [path.parent.name for path in sorted(folder.glob(f"{_SNAPSHOTS}/*/{_MANIFEST}"))]


def newest_snapshot(state: DatasetState, names: list[str]) -> Multihash:
    """The newest block of these snapshots and of a state, which are all of one history.

    Raises:
        DatasetsDivergedError: a snapshot is no block: Lode's own library has written it.
    """
    try:
        blocks = [Multihash.parse(name) for name in names]
    except InvalidIdError:
        raise parted(state, names[-1], "the export has a snapshot that", counts=(1, 1)) from None
    known = {block: state.chain.get(block).sequence_number for block in blocks if state.chain.contains(block)}
    newest = max(known, key=known.__getitem__, default=None)
    later = newest is not None and known[newest] > state.head_block.sequence_number
    top = DatasetState.read(state.chain, newest) if later else state
    for block in (*blocks, state.head):
        check_line(top, block)
    return top.head


def export_lode(place: ExportFolder, dataset: DatasetFiles, state: DatasetState, progress: Progress) -> int:
    """The store has the snapshot of a state; returns how many slices are copies."""
    copies = 0
    for ref in state.slices():
        copies += not place.has(str(ref.slice.physical_hash), verified_slice(dataset, ref))
        progress.advance()
    document = manifest_of(dataset, state) | {"codec": CODEC}
    for file in document["files"]:
        file["path"] = f"{FOLDER}/{document['dataset_id']}/{file['path']}"
    folder = place.folder / _SNAPSHOTS / str(state.head)
    fsio.make_folder(folder)
    fsio.replace_file(folder / _MANIFEST, canonical_bytes(document))
    return copies


def point_to(folder: Path, block: Multihash) -> None:
    """Lode's library takes a block for the latest; without the pointer that is the largest hash."""
    # Lode's library compares the pointer byte for byte under a lock: it ends without a line end
    path, data = folder / _POINTER, str(block).encode()
    with fsio.locked(folder / f"{_POINTER}.lock"):
        if fsio.read_start(path, len(data) + 1) != data:
            fsio.replace_file(path, data)


def rename_codecs(folder: Path, names: list[str]) -> None:
    """The manifests of earlier exports name the codec that the library has not."""
    for name in names:
        path = folder / _SNAPSHOTS / name / _MANIFEST
        if fsio.read_start(path, len(_EARLIER)) == _EARLIER:
            with fsio.storage_errors(path):
                data = path.read_bytes()
            fsio.replace_file(path, _NOW + data.removeprefix(_EARLIER))


def forget_snapshots(folder: Path) -> None:
    """Remove all snapshots at once; then none is the latest."""
    if (folder / _SNAPSHOTS).exists():
        gone = fsio.temp_path(folder)
        fsio.move_folder(folder / _SNAPSHOTS, gone)
        fsio.remove_tree(gone)
    fsio.remove_file(folder / _POINTER)
