"""Reading a profile from the bytes that it was published as.

What reads profiles only (`diff --profile`) loads neither Arrow nor numpy for it. Source: RFC-040.
"""

from __future__ import annotations

import json
from typing import Any

from odfchain.errors import CodecError, UnsupportedVersionError
from odfchain.text import one_line

FORMAT_VERSION = "1"
MOST_BYTES = 64 * 1024 * 1024


def read_profile(data: bytes) -> dict[str, Any]:
    """The document of a profile's bytes.

    Raises:
        CodecError: it is none.
        UnsupportedVersionError: it has another format version.
    """
    if len(data) > MOST_BYTES:
        raise CodecError(f"a profile of {len(data):,} bytes, at most {MOST_BYTES:,} are read")
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CodecError(f"not a profile: {one_line(str(error))}") from None
    if not isinstance(tree, dict) or "format_version" not in tree:
        raise CodecError("not a profile: it has no format_version")
    if tree["format_version"] != FORMAT_VERSION:
        raise UnsupportedVersionError(
            f"a profile of format {one_line(str(tree['format_version']))}, {FORMAT_VERSION} is read",
            hint="make it again with this program",
        )
    return tree
