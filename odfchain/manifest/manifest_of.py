"""The manifest of a dataset at a block, from the slices that are here."""

from __future__ import annotations

from typing import Any

from odfchain.manifest.snapshot_manifest import manifest_document
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState
from odfchain.repo.kept_footers import KeptFooters


def manifest_of(dataset: DatasetFiles, state: DatasetState) -> dict[str, Any]:
    """The manifest at a state's block; a slice is hashed once before its footer is believed.

    Raises:
        SliceNotFoundError, ObjectCorruptedError: a slice is not here, or damaged, or no Parquet file.
        OversizedInputError: a footer is larger than the limits allow.
    """
    kept = KeptFooters(dataset)
    document = manifest_document(state, kept.stats)
    kept.keep()
    return document
