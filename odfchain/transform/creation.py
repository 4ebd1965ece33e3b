"""What is added to a derivative dataset's definition when it is created."""

from __future__ import annotations

import dataclasses

from odfchain.engine.version import engine_version
from odfchain.metadata.block import DatasetSnapshot
from odfchain.metadata.events import MetadataEvent, SetTransform
from odfchain.transform.engines import OWN_ENGINE


def with_versions(snapshot: DatasetSnapshot) -> DatasetSnapshot:
    """The same definition, with the version of this engine in transforms that are for it and name none.

    Source: specification "Engine Versioning".
    """
    return dataclasses.replace(snapshot, metadata=tuple(_with_version(event) for event in snapshot.metadata))


def _with_version(event: MetadataEvent) -> MetadataEvent:
    if not isinstance(event, SetTransform) or event.transform.version is not None:
        return event
    if event.transform.engine.lower() != OWN_ENGINE:
        return event
    return dataclasses.replace(
        event, transform=dataclasses.replace(event.transform, version=engine_version())
    )
