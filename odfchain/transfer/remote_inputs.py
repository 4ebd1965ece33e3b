"""Inputs that a manifest names by where they come from: the copy in this workspace stands for them.

`datasetRef` may be a URL, `repo/name` or `repo/did:odf:…`. Nothing is asked of those places: an input that
was not pulled stays as it is written, and is unknown to whoever resolves it. Source: specification
"DatasetRefAny".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from odfchain.ids.did import DatasetId
from odfchain.ids.names import DatasetAlias
from odfchain.ids.refs import AmbiguousAlias, DatasetRefAny, RemoteDatasetId
from odfchain.model.events import SetTransform, TransformInput
from odfchain.model.metadata_block import DatasetSnapshot
from odfchain.repo.dataset_files import DatasetFiles

Resolve = Callable[[DatasetRefAny], DatasetId | None]
Local = Callable[[DatasetRefAny], DatasetFiles | None]


def names_places(snapshot: DatasetSnapshot) -> bool:
    """Whether an input is named by something else than a local alias or an id."""
    return any(
        not isinstance(item.dataset_ref, DatasetAlias)
        for event in snapshot.metadata
        if isinstance(event, SetTransform)
        for item in event.inputs
    )


def with_local_inputs(snapshot: DatasetSnapshot, resolve: Resolve, local: Local) -> DatasetSnapshot:
    """The definition with ids in place of such references, as far as `local` knows the datasets.

    What `resolve` finds already stays, so that `a/b` is first of all a dataset of the account `a`.
    """

    def localized(item: TransformInput) -> TransformInput:
        ref = item.dataset_ref
        if isinstance(ref, DatasetAlias) or (isinstance(ref, RemoteDatasetId) and ref.repo is None):
            return item
        if isinstance(ref, AmbiguousAlias) and resolve(ref) is not None:
            return item
        found = local(ref)
        if found is None:
            return item
        alias = item.alias if item.alias is not None else str(ref)
        return TransformInput(dataset_ref=RemoteDatasetId(None, found.id), alias=alias)

    metadata = tuple(
        dataclasses.replace(event, inputs=tuple(localized(item) for item in event.inputs))
        if isinstance(event, SetTransform)
        else event
        for event in snapshot.metadata
    )
    return dataclasses.replace(snapshot, metadata=metadata)
