"""Which engine executes a transform, and whether its results are those that the transform asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from odfchain.engine.version import engine_version, same_results
from odfchain.errors import TransformError
from odfchain.metadata.sources import Transform

if TYPE_CHECKING:
    from odfchain.engine.client import RemoteEngine
    from odfchain.workspace.config import TransformConfig

OWN_ENGINE = "spark"
"""What transforms call the engine of this project."""


def remote_engine(transform: Transform, config: TransformConfig) -> RemoteEngine | None:
    """The engine at the address that the settings give for a transform; None where this one is meant.

    Raises:
        TransformError: the transform is for another engine, and no address is known.
    """
    name = transform.engine.lower()
    address = config.engines.get(name)
    if address is not None:
        from odfchain.engine.client import RemoteEngine

        return RemoteEngine(address, deadline=config.timeout_seconds or None)
    if name != OWN_ENGINE:
        raise TransformError(
            f"the transform is for the engine `{transform.engine}`, which is not this one",
            hint=f"give its address in the settings: transform.engines.{name}, or write the query for spark",
        )
    return None


def check_version(transform: Transform, config: TransformConfig) -> None:
    """This engine gives the results that the transform asks for.

    Source: specification "Engine Deprecation".

    Raises:
        TransformError: the transform names another version, and nobody declared that it gives the same.
    """
    running = engine_version()
    if not same_results(transform.version, running, config.compatible_versions):
        raise TransformError(
            f"the transform asks for engine version {transform.version}, and this is {running}",
            hint="if both give the same results, say so in the settings: transform.compatibleVersions",
        )
