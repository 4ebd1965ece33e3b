"""The one text of a JSON document with floats (RFC 8785), which everybody hashes and signs (RFC-039).

Integers that doubles would round are texts, and so are infinities, which JSON does not have.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

import rfc8785

from odfchain.errors import CodecError, ManifestError, UsageError
from odfchain.text import one_line

LARGEST_INTEGER = 2**53 - 1
# Fractions from here on are written alike by Python and by the RFC; smaller ones with other exponents.
_SHORTEST = 1e-4


class _WrittenOtherwiseError(Exception):
    """A value that Python's JSON may write in another way than the RFC."""


def canonical_bytes(document: Mapping[str, Any]) -> bytes:
    """The one text of a document of JSON values; `CodecError` for anything else, such as NaN."""
    try:
        try:
            plain = _plain(document, strict=True)
        except _WrittenOtherwiseError:
            return bytes(rfc8785.dumps(_plain(document)))
        # Python's own JSON is a dozen times as fast, and nothing here is written otherwise by it
        text = json.dumps(plain, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
        return text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise CodecError(f"a document that canonical JSON cannot hold: {error}") from None


def _plain(value: Any, *, strict: bool = False) -> Any:
    """The document with texts for large numbers; `strict`: all of it is written alike."""
    match value:
        case str() | bool() | None:
            return value
        case int():
            return str(value) if abs(value) > LARGEST_INTEGER else value
        case float():
            if math.isinf(value):
                return "Infinity" if value > 0 else "-Infinity"
            return _fraction(value) if strict else value
        case Mapping():
            if strict and not all(isinstance(name, str) and name.isascii() for name in value):
                raise _WrittenOtherwiseError  # names are sorted by UTF-16
            return {name: _plain(inner, strict=strict) for name, inner in value.items()}
        case list() | tuple():
            return [_plain(inner, strict=strict) for inner in value]
    return value


def _fraction(value: float) -> float | int:
    if value.is_integer() and abs(value) <= LARGEST_INTEGER:
        return int(value)
    if _SHORTEST <= abs(value) <= LARGEST_INTEGER:
        return value
    raise _WrittenOtherwiseError


# One text for each JSON value, so that equal values have equal hashes and signatures.
#
# UTF-8, members sorted by name, no white space, characters as they are unless JSON wants them escaped.
# Numbers are integers. For such values it is the form of RFC 8785 (names here are ASCII, where its order is
# the same).


def canonical_json(value: Any) -> bytes:
    """The one text of a JSON value without fractions; `UsageError` for anything else."""
    _check(value)
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
        return text.encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise UsageError(f"a value that JSON cannot hold: {error}") from None


def _check(value: Any) -> None:
    waiting = [value]
    while waiting:
        match waiting.pop():
            case dict() as found:
                if not all(isinstance(name, str) for name in found):
                    raise UsageError("members of a JSON object are named by text")
                waiting += found.values()
            case list() | tuple() as found:
                waiting += found
            case None | bool() | int() | str():
                pass
            case other:
                raise UsageError(f"canonical JSON has no {type(other).__name__}")


def strict_json(data: str | bytes) -> Any:
    """The value of a JSON text that says everything once, in text that can be written again."""
    try:
        tree = json.loads(data, object_pairs_hook=unique_members, parse_constant=_no_constant)
        # half a surrogate pair is no text, and must not get further
        json.dumps(tree, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else str(error).partition("\n")[0]
        raise ManifestError(f"not readable JSON: {one_line(why)}") from None
    return tree


def unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these members; `ValueError` where a name comes twice."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name comes twice in an object")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
