"""The one text of a JSON document that has floats (RFC 8785): everybody hashes and signs the same bytes.

Integers that doubles do not hold are texts, because a reader that has doubles only would round them; so are
infinities, which JSON does not have. Source: RFC-039.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import rfc8785

from odfchain.errors import CodecError

LARGEST_INTEGER = 2**53 - 1


def canonical_bytes(document: Mapping[str, Any]) -> bytes:
    """The one text of a document of objects, lists, texts, numbers, booleans and nulls.

    Raises:
        CodecError: it has something else in it, such as NaN or text that is not Unicode.
    """
    try:
        return bytes(rfc8785.dumps(_plain(document)))
    except (ValueError, RecursionError) as error:
        raise CodecError(f"a document that canonical JSON cannot hold: {error}") from None


def _plain(value: Any) -> Any:
    match value:
        case Mapping():
            return {name: _plain(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_plain(inner) for inner in value]
        case bool() | None | str():
            return value
        case int() if abs(value) > LARGEST_INTEGER:
            return str(value)
        case float() if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
    return value
