"""Options of a query that a manifest spells out, and blocks carry at the end of the engine's version.

    manifest   engine: spark, allowedLateness: 1 day
    block      engine: spark, version: odfchain_3-spark_4.3.0+allowedLateness=PT86400S

The specification has no field for them. In the version they are part of what is recorded, reach every engine
that is asked, and are refused by those that do not know them (RFC-019).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from odfchain.errors import InvalidIdError, ManifestError
from odfchain.model.duration import Duration

ALLOWED_LATENESS = "allowedLateness"

_OPTIONS = re.compile(rf"\+{ALLOWED_LATENESS}=PT([1-9][0-9]{{0,11}})S")


def lateness_option(milliseconds: int) -> str:
    """The option as a version carries it; nothing where there is none. Whole seconds."""
    return f"+{ALLOWED_LATENESS}=PT{milliseconds // 1_000}S" if milliseconds else ""


def split_version(version: str) -> tuple[str, int]:
    """(the version without options, the allowed lateness [ms]); what is no option stays where it is."""
    found = re.fullmatch(rf"(.*?){_OPTIONS.pattern}", version, re.DOTALL)
    return (found[1], int(found[2]) * 1_000) if found is not None else (version, 0)


def with_options(tree: Mapping[str, Any], path: str) -> dict[str, Any]:
    """The tree of a transform with its options in the version.

    Raises:
        ManifestError: an option has no value that fits.
    """
    given = tree.get(ALLOWED_LATENESS)
    rest = {key: value for key, value in tree.items() if key != ALLOWED_LATENESS}
    if given is None:
        return rest
    here = f"{path}.{ALLOWED_LATENESS}" if path else ALLOWED_LATENESS
    hint = "write it like 1 day, 36 hours or 90m"
    if not isinstance(given, str):
        raise ManifestError("must be a length of time", path=here, hint=hint)
    try:
        lateness = Duration.parse(given).milliseconds
    except InvalidIdError as error:
        raise ManifestError(str(error), path=here, hint=error.hint) from None
    if lateness % 1_000:
        raise ManifestError(f"{given!r} is not a number of whole seconds", path=here, hint=hint)
    version = rest.get("version")
    if isinstance(version, str) and split_version(version)[1]:
        raise ManifestError("the version says it already", path=here, hint="say it once")
    if lateness:
        rest["version"] = (version if isinstance(version, str) else "") + lateness_option(lateness)
    return rest
