"""What is added to a derivative dataset's definition when it is created."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from odfchain.engine.engine_version import EngineRules
from odfchain.errors import TransformError
from odfchain.model.events import MetadataEvent, SetTransform
from odfchain.model.metadata_block import DatasetSnapshot
from odfchain.model.own_engine import OWN_ENGINE, is_own, is_own_name, with_own_name
from odfchain.model.query_options import ALLOWED_LATENESS, split_version
from odfchain.repo.workspace_config import TransformConfig
from odfchain.transform.engines import address_of

_NO_ADDRESSES = TransformConfig()


def with_own_engine(snapshot: DatasetSnapshot, config: TransformConfig = _NO_ADDRESSES) -> DatasetSnapshot:
    """The same definition, with this engine's name in transforms that are for it, whatever they call it.

    A name that the settings have an address for is that engine's.
    """
    return _each(snapshot, lambda event: _named(event, config))


def with_versions(snapshot: DatasetSnapshot, config: TransformConfig = _NO_ADDRESSES) -> DatasetSnapshot:
    """The same definition, with name and version of this engine in transforms that are for it.

    A version that is given stays. Source: specification "Engine Versioning".
    """
    return _each(snapshot, lambda event: _versioned(_named(event, config), config))


def _each(snapshot: DatasetSnapshot, change: Callable[[SetTransform], MetadataEvent]) -> DatasetSnapshot:
    metadata = tuple(change(e) if isinstance(e, SetTransform) else e for e in snapshot.metadata)
    return dataclasses.replace(snapshot, metadata=metadata)


def _named(event: SetTransform, config: TransformConfig) -> SetTransform:
    if address_of(event.transform, config) is not None:
        return event
    return dataclasses.replace(event, transform=with_own_name(event.transform))


def _versioned(event: SetTransform, config: TransformConfig) -> SetTransform:
    transform = event.transform
    base, lateness = split_version(transform.version or "")
    elsewhere = address_of(transform, config) is not None
    if elsewhere or not is_own_name(transform.engine):
        if lateness:
            raise TransformError(
                f"{ALLOWED_LATENESS} is an option of the engine {OWN_ENGINE}, and the transform is for "
                f"`{transform.engine}`",
                hint=f"leave it out, or write the query for {OWN_ENGINE}",
            )
        return event
    if base or not is_own(transform):
        return event
    version = EngineRules(allowed_lateness_ms=lateness).version
    return dataclasses.replace(event, transform=dataclasses.replace(transform, version=version))
