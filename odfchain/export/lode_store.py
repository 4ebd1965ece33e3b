"""A Lode store: a dataset's slices once, and a manifest for each block that was exported.

`datasets/DID/data/SLICE` and `datasets/DID/snapshots/BLOCK/manifest.json`; the manifest is the dataset's own
with its paths from the store's root. Slices come first, so a manifest never names one that is not there.
Source: RFC-039, RFC-045.
"""

from __future__ import annotations

from pathlib import Path

from odfchain.codec.document_bytes import canonical_bytes
from odfchain.errors import InvalidIdError
from odfchain.export.export_folder import ExportFolder, check_line
from odfchain.ids.multihash import Multihash
from odfchain.manifest.manifest_of import manifest_of
from odfchain.progress import Progress
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState
from odfchain.repo.read_slices import verified_slice
from odfchain.store import fsio

FOLDER = "datasets"


def exported_blocks(folder: Path) -> list[Multihash]:
    """The blocks that have manifests."""
    found = []
    with fsio.storage_errors(folder):
        for path in sorted(folder.glob("snapshots/*/manifest.json")):
            try:
                found.append(Multihash.parse(path.parent.name))
            except InvalidIdError:
                continue  # not one of ours
    return found


def check_lode(state: DatasetState, blocks: list[Multihash]) -> None:
    """The blocks with manifests and a state's are of one history, whichever is the newest."""
    known = {block: state.chain.get(block).sequence_number for block in blocks if state.chain.contains(block)}
    newest = max(known, key=known.__getitem__, default=None)
    later = newest is not None and known[newest] > state.head_block.sequence_number
    top = DatasetState.read(state.chain, newest) if later else state
    for block in (*blocks, state.head):
        check_line(top, block)


def export_lode(place: ExportFolder, dataset: DatasetFiles, state: DatasetState, progress: Progress) -> int:
    """The store has the snapshot of a state; returns how many slices are copies."""
    copies = 0
    for ref in state.slices():
        copies += not place.has(str(ref.slice.physical_hash), verified_slice(dataset, ref))
        progress.advance()
    document = manifest_of(dataset, state)
    for file in document["files"]:
        file["path"] = f"{FOLDER}/{document['dataset_id']}/{file['path']}"
    folder = place.folder / "snapshots" / str(state.head)
    fsio.make_folder(folder)
    fsio.replace_file(folder / "manifest.json", canonical_bytes(document))
    return copies
