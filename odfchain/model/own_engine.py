"""What transforms call the engine of this project.

`spark` is what it was called at first, and what other nodes take for an image of theirs. Manifests may still
say it; what is recorded says `odfchain-spark`. Chains from before are told by the version, which this engine
alone writes. Source: specification "Engine Versioning"; RFC-019.
"""

from __future__ import annotations

import dataclasses

from odfchain.model.query_options import split_version
from odfchain.model.sources import Transform

OWN_ENGINE = "odfchain-spark"
FORMER_NAME = "spark"
VERSION_PREFIX = "odfchain_"
"""How the versions of this engine begin."""


def is_own_name(engine: str) -> bool:
    """Whether a manifest or block with this name may mean this engine."""
    return engine.lower() in (OWN_ENGINE, FORMER_NAME)


def is_own(transform: Transform) -> bool:
    """Whether a transform is for this engine, as far as its name and version say.

    The former name without a version counts; an address in the settings goes before that.
    """
    name, version = transform.engine.lower(), named_version(transform)
    if name == FORMER_NAME:
        return not version or version.startswith(VERSION_PREFIX)
    return name == OWN_ENGINE


def same_engine(one: Transform, other: Transform) -> bool:
    """Whether two transforms are for one engine, which can read what it left of the other."""
    return with_own_name(one).engine.lower() == with_own_name(other).engine.lower()


def named_version(transform: Transform) -> str:
    """The version of the engine that a transform names, without options; empty where it names none."""
    return split_version(transform.version or "")[0]


def with_own_name(transform: Transform) -> Transform:
    """The transform under the name of this engine, if it is for this engine."""
    return dataclasses.replace(transform, engine=OWN_ENGINE) if is_own(transform) else transform
