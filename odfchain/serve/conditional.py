"""Which part of a response is wanted, if any: entity tags and ranges.

Pure functions over the values of header fields. What is malformed is as if it were not there, as the standard
asks of a server. Source: RFC 9110, sections 8.8.3, 13 and 14.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_RANGE = re.compile(r"bytes=[ \t]*([0-9]{0,18})-([0-9]{0,18})[ \t]*", re.IGNORECASE | re.ASCII)


def field(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str | None:
    """The value of a header field, lines of the same name joined by commas; None when it is not there."""
    found = [value.decode("latin-1") for key, value in headers if key.lower() == name]
    return ", ".join(found) if found else None


def tagged(text: str) -> str:
    """A strong entity tag."""
    return f'"{text}"'


def not_modified(if_none_match: str | None, tag: str) -> bool:
    """Whether the client has this state already: `If-None-Match` lists its tag, weak or strong, or is `*`."""
    if if_none_match is None:
        return False
    known = {item.strip().removeprefix("W/") for item in if_none_match.split(",")}
    return tag in known or known == {"*"}


def wanted_range(text: str | None, if_range: str | None, tag: str, size: int) -> range | None:
    """The one range that is asked for, empty when there is nothing in it; None for the whole.

    Several ranges and other units mean the whole, and so does a condition `If-Range` that does not hold.
    """
    if text is None or (if_range is not None and if_range.strip() != tag):
        return None
    found = _RANGE.fullmatch(text.strip())
    if found is None or not (found[1] or found[2]):
        return None
    if not found[1]:
        return range(max(0, size - int(found[2])), size)
    first, last = int(found[1]), int(found[2] or size)
    if found[2] and last < first:
        return None
    return range(min(first, size), min(last + 1, size))
