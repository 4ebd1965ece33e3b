"""Reading a profile from the bytes that it was published as; they may be anybody's.

What reads profiles only (`diff --profile`) loads neither Arrow nor numpy for it. Source: RFC-040.
"""

from __future__ import annotations

import json
import math
from typing import Any

from odfchain.errors import CodecError, ManifestError, UnsupportedVersionError
from odfchain.profile.profile_shape import check_profile
from odfchain.text import one_line

FORMAT_VERSION = "1"
MOST_BYTES = 64 * 1024 * 1024
_LARGEST_INTEGER = 2**53 - 1


def read_profile(data: bytes) -> dict[str, Any]:
    """The document of a profile's bytes; its canonical text is that of the profile again.

    Raises:
        CodecError: it is none, and where it is not.
        UnsupportedVersionError: it has another format version.
    """
    if len(data) > MOST_BYTES:
        raise CodecError(f"a profile of {len(data):,} bytes, at most {MOST_BYTES:,} are read")
    try:
        tree = json.loads(
            data, parse_int=_integer, parse_float=_finite, parse_constant=_finite, object_pairs_hook=_object
        )
        json.dumps(tree, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except (ValueError, RecursionError) as error:
        raise CodecError(f"not a profile: {one_line(str(error))}") from None
    if not isinstance(tree, dict) or "format_version" not in tree:
        raise CodecError("not a profile: it has no format_version")
    if tree["format_version"] != FORMAT_VERSION:
        raise UnsupportedVersionError(
            f"a profile of format {one_line(str(tree['format_version']))}, {FORMAT_VERSION} is read",
            hint="make it again with this program",
        )
    try:
        check_profile(tree)
    except ManifestError as error:
        raise CodecError(f"not a profile: {one_line(error.path or '')}: {error.message}") from None
    return tree


def _integer(text: str) -> int | float:
    """Larger integers are text; digits alone are then a double that is whole."""
    return int(text) if len(text) < 16 or abs(int(text)) <= _LARGEST_INTEGER else _finite(text)


def _finite(text: str) -> float:
    found = float(text)
    if not math.isfinite(found):
        raise ValueError(f"{text[:40]} is not a number that a profile has")
    return found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice in an object")
    return found
