"""The manifest of a dataset at a block, from the slices that are here."""

from __future__ import annotations

from typing import Any

from odfchain.manifest.snapshot_manifest import manifest_document
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState, SliceRef
from odfchain.repo.read_slices import verified_slice
from odfchain.slices.footers import FileStats, file_stats


def manifest_of(dataset: DatasetFiles, state: DatasetState) -> dict[str, Any]:
    """The manifest at a state's block; each slice is hashed before its footer is believed.

    Raises:
        SliceNotFoundError, ObjectCorruptedError: a slice is not here, or damaged.
        BadInputError, OversizedInputError: naming a slice whose footer cannot be read.
    """

    def stats_of(ref: SliceRef) -> FileStats:
        return file_stats(verified_slice(dataset, ref))

    return manifest_document(state, stats_of)
