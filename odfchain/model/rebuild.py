"""The mark of a transform that is to be computed anew over everything.

The first step after a `SetTransform` whose version ends with `+rebuild` reads every recorded row of its
inputs, from the first one on, begins without a checkpoint, and records what has to be taken from the output
so far and added to it, so that the output is what the query says of everything. Its block names the blocks
that are new, as every block does: intervals of inputs continue each other. So the mark in the transform is
what a replay goes by; those who do not know it see an engine version that they do not have.
Source: specification "Query Evolution", "Engine Versioning"; RFC-019.
"""

from __future__ import annotations

import dataclasses

from odfchain.model.query_options import split_version
from odfchain.model.sources import Transform

_MARK = "+rebuild"


def is_rebuilt(transform: Transform) -> bool:
    """Whether the first step of the transform computes everything anew."""
    return (transform.version or "").endswith(_MARK)


def rebuilt(transform: Transform) -> Transform:
    """The transform with the mark; it must have a version."""
    if is_rebuilt(transform):
        return transform
    return dataclasses.replace(transform, version=f"{transform.version or ''}{_MARK}")


def without_marks(version: str) -> str:
    """The version of an engine, without what this project adds to it."""
    return split_version(version.removesuffix(_MARK))[0]


def with_version(transform: Transform, version: str) -> Transform:
    """The transform with the version of the engine that executes it, and with the mark that it has."""
    named = dataclasses.replace(transform, version=version)
    return rebuilt(named) if is_rebuilt(transform) else named


def unmarked(transform: Transform) -> Transform:
    """The transform without the mark, as engines and manifests know it."""
    if not is_rebuilt(transform):
        return transform
    version = (transform.version or "").removesuffix(_MARK)
    return dataclasses.replace(transform, version=version or None)
