"""Statistics of slices that are not here, signed by the dataset's owner alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from odfchain.chain.signed_lines import SnapshotKind, SnapshotLine
from odfchain.errors import OdfchainError, StoreError
from odfchain.odf.identity import Multihash
from odfchain.profiles.manifests import files_of, stats_of_document
from odfchain.profiles.published import object_of, published, signed_manifest
from odfchain.slices.footers import FileStats
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.read_slices import KeptFooters, columns_of

Bring = Callable[[SnapshotLine], bytes]
"""Brings the document that a line names from elsewhere; it hashes to its name."""


def trusted_stats(dataset: DatasetFiles, state: DatasetState, bring: Bring) -> dict[Multihash, FileStats]:
    """Statistics of slices that can be trusted before the slices are here."""
    kept, said = KeptFooters(dataset), _said_by_owner(dataset, state, bring)
    found = {}
    for ref in state.slices():
        name = ref.slice.physical_hash
        # statistics read from verified bytes win over the owner's signed manifest
        own = kept.known(name)
        stats = own if own is not None else said.get(name)
        if stats is not None and stats.row_count == ref.slice.offset_interval.count:
            found[name] = stats
    return found


def _said_by_owner(dataset: DatasetFiles, state: DatasetState, bring: Bring) -> dict[Multihash, FileStats]:
    schema = columns_of(state, None)
    for line in published(dataset, SnapshotKind.MANIFEST):
        if not line.by_owner:
            continue
        try:
            document = signed_manifest(dataset, line, _content(dataset, line, bring))
            return {name: stats_of_document(file, schema) for name, file in files_of(document).items()}
        except OdfchainError:
            continue  # an older one says less, and is as true
    return {}


def manifest_by_owner(
    dataset: DatasetFiles, state: DatasetState
) -> tuple[dict[str, Any], list[FileStats]] | None:
    """(the manifest of a state's block that the owner signed, the statistics of its files).

    None where it is not here, or names other files than the chain.
    """
    schema, slices = columns_of(state, None), [ref.slice for ref in state.slices()]
    for line in published(dataset, SnapshotKind.MANIFEST):
        if not line.by_owner or line.block != state.head:
            continue
        try:
            document = signed_manifest(dataset, line, object_of(dataset, line))
            files = files_of(document)
            found = [stats_of_document(file, schema) for file in files.values()]
        except OdfchainError:
            return None
        told = [(name, stats.row_count) for name, stats in zip(files, found, strict=True)]
        named = [(each.physical_hash, each.offset_interval.count) for each in slices]
        return (document, found) if told == named else None
    return None


def _content(dataset: DatasetFiles, line: SnapshotLine, bring: Bring) -> bytes:
    try:
        return object_of(dataset, line)
    except StoreError:  # it is not here, or damaged
        return bring(line)
