"""The manifest of a dataset at a block, from the slices that are here."""

from __future__ import annotations

from typing import Any

from odfchain.manifest.snapshot_manifest import manifest_document
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState, SliceRef
from odfchain.repo.kept_footers import KeptFooters
from odfchain.slices.footers import FileStats


def manifest_of(dataset: DatasetFiles, state: DatasetState) -> dict[str, Any]:
    """The manifest at a state's block; errors as `described`."""
    return described(dataset, state)[0]


def described(dataset: DatasetFiles, state: DatasetState) -> tuple[dict[str, Any], list[FileStats]]:
    """(the manifest at a state's block, the statistics of its files as they are compared).

    A slice is hashed once before its footer is believed.
    """
    kept, found = KeptFooters(dataset), list[FileStats]()

    def stats_of(ref: SliceRef) -> FileStats:
        found.append(kept.stats(ref))
        return found[-1]

    document = manifest_document(state, stats_of)
    return document, found
