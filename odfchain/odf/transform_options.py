"""Options of a query that a manifest spells out, and blocks carry at the end of the engine's version.

    manifest   engine: spark, allowedLateness: 1 day
    block      engine: spark, version: odfchain_3-spark_4.3.0+allowedLateness=PT86400S

The specification has no field for them. In the version they are part of what is recorded, reach every engine
that is asked, and are refused by those that do not know them (RFC-019).
"""

from __future__ import annotations

import dataclasses
import re

from odfchain.odf.sources import Transform

ALLOWED_LATENESS = "allowedLateness"

_OPTIONS = re.compile(rf"\+{ALLOWED_LATENESS}=PT([1-9][0-9]{{0,11}})S")


def lateness_option(milliseconds: int) -> str:
    """The option as a version carries it; nothing where there is none. Whole seconds."""
    return f"+{ALLOWED_LATENESS}=PT{milliseconds // 1_000}S" if milliseconds else ""


def split_version(version: str) -> tuple[str, int]:
    """(the version without options, the allowed lateness [ms]); what is no option stays where it is."""
    found = re.fullmatch(rf"(.*?){_OPTIONS.pattern}", version, re.DOTALL)
    return (found[1], int(found[2]) * 1_000) if found is not None else (version, 0)


# What transforms call the engine of this project.
#
# `spark` is what it was called at first, and what other nodes take for an image of theirs. Manifests may
# still say it; what is recorded says `odfchain-spark`. Older chains are recognised by the version, which
# this engine alone writes. Source: specification "Engine Versioning"; RFC-019.

OWN_ENGINE = "odfchain-spark"
DATAFUSION = "datafusion"
"""The engine on DataFusion, unless the settings name another one for it."""
FORMER_NAME = "spark"
VERSION_PREFIX = "odfchain_"
"""How the versions of this engine begin."""


def is_own_name(engine: str) -> bool:
    """True if a manifest or block with this name may mean this engine."""
    return engine.lower() in (OWN_ENGINE, FORMER_NAME)


def is_own(transform: Transform) -> bool:
    """True if a transform is for this engine, as far as its name and version say."""
    name, version = transform.engine.lower(), named_version(transform)
    if name == FORMER_NAME:
        # chains of the first versions have the former name without a version
        return not version or version.startswith(VERSION_PREFIX)
    return name == OWN_ENGINE


def named_version(transform: Transform) -> str:
    """The version of the engine that a transform names, without options; empty where it names none."""
    return split_version(transform.version or "")[0]


def with_own_name(transform: Transform) -> Transform:
    """The transform under the name of this engine, if it is for this engine."""
    return dataclasses.replace(transform, engine=OWN_ENGINE) if is_own(transform) else transform


# The mark of a transform that is to be computed anew over everything.
#
# The first step after a `SetTransform` whose version ends with `+rebuild` reads every recorded row of its
# inputs, from the first one on, begins without a checkpoint, and records what has to be taken from the
# output so far and added to it, so that the output is what the query says of everything. Its block names
# the blocks that are new, as every block does: intervals of inputs continue each other. So the mark in the
# transform is what a replay goes by; those who do not know it see an engine version that they do not have.
# Source: specification "Query Evolution", "Engine Versioning"; RFC-019.

REBUILD_MARK = "+rebuild"


def is_rebuilt(transform: Transform) -> bool:
    """True if the first step of the transform computes everything anew."""
    return (transform.version or "").endswith(REBUILD_MARK)


def rebuilt(transform: Transform) -> Transform:
    """The transform with the mark; it must have a version."""
    if is_rebuilt(transform):
        return transform
    return dataclasses.replace(transform, version=f"{transform.version or ''}{REBUILD_MARK}")


def unmarked(transform: Transform) -> Transform:
    """The transform without the mark, as engines and manifests know it."""
    if not is_rebuilt(transform):
        return transform
    version = (transform.version or "").removesuffix(REBUILD_MARK)
    return dataclasses.replace(transform, version=version or None)
